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
#include "coordinator/planner/plan.h"

namespace strata {

struct LoadedStage {
  PlannedModel::StaleStage at;
  KeptStage stage;
  bool may_stay = true;  // it is as the placement want it
};

// What the nodes of `planned` tell: stages of devices that are planned for, whose memory counts as
// free then; none with experts in the host's memory, of which nodes do not tell how much it is.
// Stages of programs that coordinate for themselves carry no node's id, and are theirs. The costs
// and the cache of the request are filled in.
std::vector<LoadedStage> TakeLoaded(const wire::PlacementOptions& placement, PlannedModel* planned);

// Around them with kAround, where that is possible; else as MakePlan(), whose errors it has.
absl::StatusOr<Plan> PlanWithLoaded(const PlanRequest& request,
                                    const std::vector<LoadedStage>& loaded,
                                    PlanningOptions::Loaded what);

// Says for each stage of `planned`'s plan which of them it keeps, and which are left over.
void MatchLoaded(const std::vector<LoadedStage>& loaded, PlanningOptions::Loaded what,
                 PlannedModel* planned);

// Whether one of what a node tells is that stage of the plan of `epoch`, and serves.
bool Serves(const std::vector<wire::StageStatus>& told, const wire::Epoch& epoch, size_t stage);
// Whether what failed so may be had later, without anybody's doing here: room, or a file that comes
// back.
bool IsCapacityError(const absl::Status& status);

// What the next plan keeps of a model that was lost `in_a_row` times before, each soon after the
// other, and now for `why`: from the third time on nothing that may itself be what breaks, and at
// the fifth nothing; all where there was only too little room. `all_serve`: whether the nodes of
// all stages answer and say that they serve; it is asked where `why` names no other cause.
PlanningOptions::Loaded KeptAfter(uint32_t in_a_row, const PlannedModel& lost,
                                  const absl::Status& why, absl::FunctionRef<bool()> all_serve);

}  // namespace strata
