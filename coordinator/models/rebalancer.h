// Decides when to look for plans by which models would be faster. A state machine without I/O,
// thread or clock. Not thread-safe.
#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "transport/base/steady_time.h"

namespace strata {

// Looks some time after something has changed: nodes that have just come measure first, and those
// that come often do not come one by one.
class RebalanceSchedule {
 public:
  void OnChange(SteadyTime now) { at_ = now + kAfterChange; }
  SteadyTime at() const { return at_; }
  void Begin() { at_ = SteadyTime::InfiniteFuture(); }
  // `again`: a plan may be better soon. `next_back`: when a node that is kept out now is taken
  // again.
  void End(bool again, SteadyTime next_back, SteadyTime now) {
    at_ = std::min(at_, next_back);
    if (again) at_ = std::min(at_, now + kAgainAfter);
  }

 private:
  static constexpr absl::Duration kAfterChange = absl::Seconds(5);
  static constexpr absl::Duration kAgainAfter = absl::Seconds(30);  // planning takes time of a node

  SteadyTime at_ = SteadyTime::InfiniteFuture();
};

}  // namespace strata
