// The path of the embedded demo model.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace strata {

// Tried in order: $STRATA_DEMO_MODEL, ../share/strata beside the program's folder (installed), the
// source tree it was built from. kNotFound names all three.
absl::StatusOr<std::string> DemoModelPath();

}  // namespace strata
