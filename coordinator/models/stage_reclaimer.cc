#include "coordinator/models/stage_reclaimer.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "coordinator/membership/membership_types.h"
#include "transport/base/epoch.h"

namespace strata {

void StageReclaimer::OnMembersChanged() {
  due_at_ = SteadyTime::InfinitePast();
  after_ = kAfter;
}

void StageReclaimer::OnDeploymentEnded(SteadyTime now) {
  after_ = kAfter;
  due_at_ = std::min(due_at_, now + after_);
}

void StageReclaimer::End(bool found_none, SteadyTime now) {
  const bool changed_meanwhile = due_at_ != SteadyTime::InfiniteFuture();
  due_at_ = std::min(due_at_, now + after_);
  if (changed_meanwhile) return;  // the next look is the first one that sees it
  after_ = found_none ? std::min(2 * after_, kAfterMax) : kAfter;
}

StaleStages FindStaleStages(const StageInventory& loaded) {
  StaleStages found;
  // Programs that coordinate for themselves carry no node's id, and their stages are left alone.
  const auto is_stale = [&](const wire::StageStatus& stage) {
    return NodeId::FromHex(stage.epoch().coordinator_id()).ok() &&
           absl::c_none_of(loaded.known, [&](const wire::Epoch& epoch) {
             return CompareEpochs(epoch, stage.epoch()) == 0;
           });
  };
  for (const std::vector<wire::StageStatus>& node : loaded.nodes) {
    for (const wire::StageStatus& stage : node) {
      // Stages of other states are left of what the coordinator before unloaded, or did not load.
      const bool was_served =
          stage.state() == wire::StageStatus::SERVING || stage.state() == wire::StageStatus::FAILED;
      wire::LoadModelRequest origin;
      if (loaded.learns && was_served && is_stale(stage) &&
          origin.ParseFromString(stage.origin()) && origin.hold()) {
        found.held.insert(stage.model_id());
      }
    }
  }
  const auto may_stay = [&](const std::string& id) {
    return loaded.kept.contains(id) || found.held.contains(id);
  };
  found.found_none = loaded.kept.empty();
  for (size_t n = 0; n < loaded.nodes.size(); ++n) {
    for (size_t i = 0; i < loaded.nodes[n].size(); ++i) {
      const wire::StageStatus& stage = loaded.nodes[n][i];
      if (!is_stale(stage)) continue;
      found.found_none = false;
      const bool serves = stage.state() == wire::StageStatus::SERVING;
      // No plan keeps a stage with experts in its host's memory (reusable_stages.h).
      if (serves && stage.n_cpu_moe() == 0 && may_stay(stage.model_id())) continue;
      // A failed stage took no room, and a model that is tried in vain must not be what has it
      // tried again.
      found.stages.push_back({.node = n,
                              .stage = i,
                              .makes_room = serves && !loaded.kept.contains(stage.model_id()) &&
                                            !found.held.contains(stage.model_id())});
    }
  }
  return found;
}

}  // namespace strata
