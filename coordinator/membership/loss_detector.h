// Detects members of a cluster that were lost. A silent node loses its membership some time before
// it counts as gone, and may be back until then.
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
  // Returns whether `view` has other members than the view before. Former members that are gone are
  // added to `losses`. To be called for every view, also an unchanged one.
  bool Look(const ClusterView& view, SteadyTime now, NodeFlapTracker* losses);

 private:
  std::vector<NodeId> members_;
  std::set<NodeId> left_;  // former members that may be gone
};

}  // namespace strata
