// Chooses the nodes that keep a model's routed experts in their CPU's memory while the rest of its
// layers is on another device. A layer's experts are most of its bytes, and a token reads few of
// them: a device that is too small for whole layers does more with many layers' other weights than
// with a few whole layers. Internal to the planner; pure functions; any thread.
//
// Tries every node with both kinds of device alone, and then the best of these together with each
// other one, as long as it helps. A try has the experts of all layers of that node in its CPU's
// memory; the final plan only those of as many layers as would not fit otherwise, the first ones of
// the stage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "coordinator/planner/problem/plan.h"
#include "coordinator/planner/problem/problem.h"
#include "coordinator/planner/problem/solve.h"

namespace strata {

// The request with the devices' moe_host and cpu_moe filled in, and the solution that `solve` finds
// for it: the cheapest. Without a solution: the request as it is.
struct MoePlan {
  PlanRequest request;
  Solution solution;
};
MoePlan PlaceMoe(const PlanRequest& request,
                 absl::FunctionRef<Solution(const PlanProblem& problem)> solve);

}  // namespace strata
