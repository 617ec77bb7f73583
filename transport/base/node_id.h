// Node ids in their text form. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace strata {

// 128 bits.
inline constexpr size_t kNodeIdDigits = 32;

// kNodeIdDigits lower-case hex digits.
bool IsNodeId(absl::string_view text);

// A new node id: 128 random bits, 32 lower-case hex digits.
std::string NewNodeId();

// Random, not 0: distinguishes processes that have the same node id.
uint64_t NewNonce();

}  // namespace strata
