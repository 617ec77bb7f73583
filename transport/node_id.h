// What names a node wherever it is written as text. Any thread.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace strata {

// 128 bits.
inline constexpr size_t kNodeIdDigits = 32;

// kNodeIdDigits lower-case hex digits.
bool IsNodeId(absl::string_view text);

}  // namespace strata
