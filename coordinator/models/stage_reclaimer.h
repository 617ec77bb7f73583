// Stages that no plan uses hold memory for nothing: when a coordinator looks for them, which they
// are, and which of them callers of the coordinator before held. A state machine without I/O,
// thread or clock. Not thread-safe.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"
#include "proto/node.pb.h"
#include "transport/base/steady_time.h"

namespace strata {

// When to look: at once where the role or the members have changed; some time after a deployment
// has ended; else more and more rarely.
class StageReclaimer {
 public:
  // The role may be acted on again (LeaderRole::may_act()), or the members have changed.
  void OnMayAct() { due_at_ = SteadyTime::InfinitePast(); }
  void OnMembersChanged();
  // A deployment has ended, and may have left stages.
  void OnDeploymentEnded(SteadyTime now);
  // When to look; not while a look is in progress.
  SteadyTime due_at() const { return due_at_; }
  // A look begins, and ends.
  void Begin() { due_at_ = SteadyTime::InfiniteFuture(); }
  void End(bool found_none, SteadyTime now);

 private:
  static constexpr absl::Duration kAfter = absl::Seconds(5), kAfterMax = absl::Minutes(1);

  SteadyTime due_at_ = SteadyTime::InfinitePast();
  absl::Duration after_ = kAfter;
};

// The input of FindStaleStages().
struct StageInventory {
  // By node: its stages.
  std::vector<std::vector<wire::StageStatus>> nodes;
  // Epochs of the plans that serve or are about to.
  std::vector<wire::Epoch> known;
  // Ids of models whose next plans may keep stages.
  std::set<std::string> kept;
  // The role is new: held stages are learnt of.
  bool learns = false;
};
struct StaleStages {
  struct Stage {
    size_t node = 0, stage = 0;  // of StageInventory
    bool makes_room = false;     // it serves, and no next plan is waited for
  };
  std::vector<Stage> stages;  // to be unloaded
  // Ids of models that callers of the coordinator before held: the callers are about to ask for
  // them again. Empty unless it learns.
  std::set<std::string> held;
  bool found_none = false;  // no stage of another plan, and none is waited for
};
StaleStages FindStaleStages(const StageInventory& loaded);

}  // namespace strata
