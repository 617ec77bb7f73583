#include "coordinator/membership/loss_detector.h"

#include "absl/algorithm/container.h"
#include "transport/base/steady_time.h"

namespace strata {

bool LossDetector::Look(const ClusterView& view, SteadyTime now, NodeFlapTracker* losses) {
  const bool changed = view.members != members_;
  if (changed) {
    for (const NodeId& id : members_) {
      if (!absl::c_linear_search(view.members, id)) left_.insert(id);
    }
    members_ = view.members;
  }
  std::erase_if(left_, [&](const NodeId& id) {
    const ClusterView::Node* const node = view.Find(id);
    const bool gone = node == nullptr || node->state == ClusterView::State::kGone;
    if (gone) losses->Add(id.ToHex(), now);
    return gone || absl::c_linear_search(view.members, id);
  });
  return changed;
}

}  // namespace strata
