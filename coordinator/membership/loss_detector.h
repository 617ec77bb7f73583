// Which members of a cluster were lost. One that falls silent is no member any more some time
// before it counts as gone, and may be back until then.
#pragma once

#include <set>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/membership/flap_tracker.h"
#include "coordinator/membership/membership_types.h"
#include "transport/base/steady_time.h"

namespace strata {

// Not thread-safe.
class LossDetector {
 public:
  // Whether `view` has other members than the view before. Those that have gone since they were
  // members are added to `losses`. At every look, also where nothing has changed.
  bool Look(const ClusterView& view, SteadyTime now, NodeFlapTracker* losses);

 private:
  std::vector<NodeId> members_;
  std::set<NodeId> left_;  // members that were, and may be gone
};

}  // namespace strata
