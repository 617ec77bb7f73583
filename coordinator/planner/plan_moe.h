// Which nodes keep the routed experts of a model in their CPU's memory while the rest of its layers
// is on another device. A layer's experts are most of its bytes, and a token reads few of them:
// where a device is too small for whole layers, it does more with all the rest of many than with
// all of few. Internal to the planner; pure functions; any thread.
//
// Tried is every node with both kinds of device for itself, and then with the best of those each
// other one, as long as it helps: exact for one such node, not for several. While it is tried, the
// experts of all layers of that node are in its CPU's memory; of the plan that comes out, only of
// as many layers as would not fit otherwise, the first ones of the stage.
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
// Whether this device's memory is that in which another one, with memory of its own, has experts:
// a stage there would count on what they take.
bool SharesMoeHost(const PlanRequest& request, size_t device);
// What experts of stages on `device` may take of its host's memory: those that have the same host
// and may get a stage share evenly what their token embeddings and logits leave.
uint64_t MoeHostBytes(const PlanRequest& request, const PlanDevice& device);

// Copies of these devices, in this order, and behind them the hosts of their experts.
std::vector<PlanDevice> WithMoeHosts(const PlanRequest& request,
                                     const std::vector<size_t>& devices);

// The request with the devices' moe_host and cpu_moe filled in, and what `solve` finds for it: the
// cheapest. Nothing found: the request as it is.
struct MoePlan {
  PlanRequest request;
  Solution solution;
};
MoePlan PlaceMoe(const PlanRequest& request,
                 absl::FunctionRef<Solution(const PlanProblem& problem)> solve);

}  // namespace strata
