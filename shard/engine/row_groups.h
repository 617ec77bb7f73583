// Where each sequence has a state or a cache of its own, libllama runs graphs that have equally
// many rows of each of their sequences, and splits a batch accordingly. A stage that reads rows in
// the middle of a graph must know which they are, so it splits the batch itself.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace strata {

// Row indices of each group: the same number of rows of each of its sequences, sequence after
// sequence in the order of their slots. libllama may split a group further, between sequences; it
// keeps that order. `slots` is the slot of each row; rows of one slot stay in their order.
std::vector<std::vector<uint32_t>> EqualGroups(absl::Span<const int32_t> slots);

}  // namespace strata
