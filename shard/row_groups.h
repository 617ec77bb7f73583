// Recurrent layers advance all sequences of a graph by the same number of tokens, so libllama cuts a
// batch into groups of equally many rows per sequence and runs one graph for each. A stage that takes
// rows out of the middle of a graph must know which they are, so it makes the same cut itself.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace strata {

// Row indices of each graph, in its order: sequence after sequence, the sequences in the order in which
// they first appear. `slots` is the slot of each row; rows of one slot stay in their order.
std::vector<std::vector<uint32_t>> EqualGroups(absl::Span<const int32_t> slots);

}  // namespace strata
