// Chooses the nodes that keep a model's routed experts in their CPU's memory while the rest of its
// layers is on another device. A layer's experts are most of its bytes, and a token reads few of
// them: a device that is too small for whole layers does more with many layers' other weights than
// with a few whole layers. Internal to the planner; pure functions; any thread.
//
// Tries every node with both kinds of device alone, and then the best of these together with each
// other one, as long as it helps: exact for one such node, not for several. A try has the experts
// of all layers of that node in its CPU's memory; the final plan only those of as many layers as
// would not fit otherwise, the first ones of the stage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "coordinator/planner/plan.h"
#include "coordinator/planner/plan_problem.h"
#include "coordinator/planner/plan_solve.h"

namespace strata {

// Whether this device computes experts for another one, and has no stage of its own.
bool IsMoeHost(const PlanRequest& request, size_t device);
// Whether this device's memory holds the experts of another device, which has memory of its own: a
// stage there would count on the same bytes.
bool SharesMoeHost(const PlanRequest& request, size_t device);
// The room in its host's memory for experts of stages on `device`: the devices with the same host
// that may get a stage share evenly what their token embeddings and logits leave.
uint64_t MoeHostBytes(const PlanRequest& request, const PlanDevice& device);

// Copies of these devices, in this order, followed by the hosts of their experts.
std::vector<PlanDevice> WithMoeHosts(const PlanRequest& request,
                                     const std::vector<size_t>& devices);

// The request with the devices' moe_host and cpu_moe filled in, and the solution that `solve` finds
// for it: the cheapest. Without a solution: the request as it is.
struct MoePlan {
  PlanRequest request;
  Solution solution;
};
MoePlan PlaceMoe(const PlanRequest& request,
                 absl::FunctionRef<Solution(const PlanProblem& problem)> solve);

}  // namespace strata
