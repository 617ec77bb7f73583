#pragma once

// Ids as they are shown to people and in labels: the first digits of their hexadecimal form.

#include <cstddef>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace strata {

inline constexpr size_t kShortNodeIdDigits = 8;
inline constexpr size_t kShortModelIdDigits = 12;

// `id` is the bytes themselves.
inline std::string ShortNodeId(absl::string_view id) {
  return absl::BytesToHexString(id).substr(0, kShortNodeIdDigits);
}

inline std::string ShortModelId(absl::string_view id) {
  return absl::BytesToHexString(id).substr(0, kShortModelIdDigits);
}

}  // namespace strata
