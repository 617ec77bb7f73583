#include "transport/base/wall_clock.h"

#include "absl/time/clock.h"

namespace strata {

absl::Time WallNow() { return absl::Now(); }

}  // namespace strata
