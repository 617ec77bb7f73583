// Stages of a model that nodes have loaded already, and plans that keep them. Of
// coordinator/models/model_planner.h; pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/models/model_planner.h"
#include "coordinator/planner/problem/plan.h"

namespace strata {

struct LoadedStage {
  PlannedModel::StaleStage at;
  KeptStage stage;
  bool may_stay = true;  // it is as the placement options require
};

// The stages that the nodes of `planned` report, of devices that are planned for; their memory
// counts as free from then on. Leaves out stages with experts in the host's memory, of which nodes
// do not report the size, and those of programs that coordinate for themselves, whose epochs carry
// no node's id. REQUIRES: the costs and the cache of the request are filled in.
std::vector<LoadedStage> TakeLoaded(const wire::PlacementOptions& placement, PlannedModel* planned);

// Plans around the loaded stages with kAround, where that is possible; else as MakePlan(), whose
// errors it returns.
absl::StatusOr<Plan> PlanWithLoaded(const PlanRequest& request,
                                    const std::vector<LoadedStage>& loaded,
                                    PlanningOptions::Reuse reuse);

// Those of `loaded` that the plan has.
std::vector<KeptStage> StagesThatStay(const std::vector<LoadedStage>& loaded, const Plan& plan);

// Sets which loaded stage each stage of `planned`'s plan keeps, and which loaded stages are stale.
void MatchLoaded(const std::vector<LoadedStage>& loaded, PlanningOptions::Reuse reuse,
                 PlannedModel* planned);

// Whether one of the stages that a node reported is `stage` of the plan of `epoch`, and serves.
bool Serves(const std::vector<wire::StageStatus>& reported, const wire::Epoch& epoch, size_t stage);
// Whether a load that failed with `status` may succeed later without a person's help: there may be
// room, or a file may come back.
bool IsCapacityError(const absl::Status& status);

// Which stages the next plan keeps of a model that was lost `in_a_row` times before, each soon
// after the other, and now for `why`: from the third time on none that may itself be the cause, and
// at the fifth none; all where there was only too little room. `all_serve`: whether the nodes of
// all stages answer and report that they serve; called where `why` names no other cause.
PlanningOptions::Reuse KeptAfter(uint32_t in_a_row, const PlannedModel& lost,
                                 const absl::Status& why, absl::FunctionRef<bool()> all_serve);

}  // namespace strata
