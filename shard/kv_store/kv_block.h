// The names of KV blocks. A block is kKvBlockTokens positions of a sequence's KV cache, which one
// stage keeps the keys and values of its layers for. Its name is a hash of all tokens up to its end
// and of a scope, so that sequences of one scope that begin alike have blocks of the same names,
// and those of other scopes have none. After vLLM's automatic prefix caching.
//
// A cache that forgets, as of recurrent states and windows, has no such parts: one block is all
// that a slot holds of a sequence, a state. Its name tells how long the sequence is, since it is
// found only by those that begin with all of it. Pure functions, any thread.
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
inline constexpr size_t kKvScopeBytesMax = 64;

using KvName = std::array<char, kKvNameBytes>;

// Of the whole blocks of `tokens`, in their order.
std::vector<KvName> KvNamesOf(absl::string_view scope, absl::Span<const int32_t> tokens);

// Of the states of the beginnings of `tokens` that have these lengths, which rise up to that of
// `tokens`.
std::vector<KvName> KvStateNamesOf(absl::string_view scope, absl::Span<const int32_t> tokens,
                                   absl::Span<const uint32_t> lengths);
// The length that a state's name tells.
uint32_t KvStateLength(const KvName& name);

// One after the other, and back; a rest that is too short for a name is ignored.
std::string JoinKvNames(absl::Span<const KvName> names);
std::vector<KvName> SplitKvNames(absl::string_view bytes);

}  // namespace strata
