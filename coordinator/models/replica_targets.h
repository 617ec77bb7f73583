// Which nodes keep copies of the KV blocks of a model's stages: those that would get the layers if
// the stage's node were lost, by the plan that recovery would make then. Pure; any thread; takes as
// long as that many plans around loaded stages.
#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "coordinator/models/model_planner.h"
#include "coordinator/planner/problem/plan.h"
#include "proto/node.pb.h"

namespace strata {

// Of each stage of the plan; one that has none has a target that says why, unless there is one node
// in all. REQUIRES: IsAllKept().
// `should_continue` is called between plans; false: it returns none.
std::vector<std::vector<wire::ReplicaTarget>> ReplicaTargetsOf(
    const PlannedModel& planned, absl::FunctionRef<bool()> should_continue);

// The stages that nodes have copies for, as they report.
std::vector<KeptStage> HeldReplicas(const PlannedModel& planned);

// `plan`, which was made around `kept`, or, where that is not much slower, the plan that gives the
// missing layers to the nodes with copies of their KV blocks.
Plan PreferReplicas(const PlanRequest& request, std::vector<KeptStage> kept,
                    const std::vector<KeptStage>& replicas, Plan plan);

}  // namespace strata
