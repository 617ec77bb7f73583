// The time of day, as this machine has it: for certificates and tokens that end, for logs, and for
// people. It may be wrong, and jump hours back or forth at any moment; durations are measured by
// SteadyTime (steady_time.h). Any thread.
#pragma once

#include "absl/time/time.h"

namespace strata {

absl::Time WallNow();

}  // namespace strata
