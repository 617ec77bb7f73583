// Names that a mistyped one may mean. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace strata {

inline constexpr size_t kNearNamesMax = 5;

// Those of `names` that have `name` within them or are within it, or differ in few characters, the
// nearest first and each once; case and the prefix of a hub do not matter. At most kNearNamesMax.
// The first 128 bytes count, of the first 2,000 names.
std::vector<std::string> NearNames(absl::string_view name, absl::Span<const std::string> names);

// "; near are: a, b", or nothing where none is near.
std::string NearText(absl::string_view name, absl::Span<const std::string> names);

}  // namespace strata
