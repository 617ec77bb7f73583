// The names of KV blocks. A block is kKvBlockTokens positions of a sequence's KV cache, which one
// stage keeps the keys and values of its layers for. Its name is a hash of all tokens up to its end
// and of a scope, so that sequences of one scope that begin alike have blocks of the same names,
// and those of other scopes have none. After vLLM's automatic prefix caching. Pure functions, any
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace strata {

// So few that a prompt that differs from an earlier one loses little before the difference, and so
// many that a block is worth a file.
inline constexpr uint32_t kKvBlockTokens = 64;
inline constexpr size_t kKvNameBytes = 16;
// Of one stage: their names fit into a message.
inline constexpr uint32_t kKvBlocksMax = 65'536;

using KvName = std::array<char, kKvNameBytes>;

// Of the whole blocks of `tokens`, in their order.
std::vector<KvName> KvNamesOf(absl::string_view scope, absl::Span<const int32_t> tokens);

// One after the other, and back; a rest that is too short for a name is ignored.
std::string JoinKvNames(absl::Span<const KvName> names);
std::vector<KvName> SplitKvNames(absl::string_view bytes);

}  // namespace strata
