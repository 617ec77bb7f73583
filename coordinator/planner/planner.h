// Chooses the devices, their order and the cuts of the model: the plan with the least predicted
// time (costs/cost_model.h) among those that fit. Pure; any thread; takes up to seconds of compute,
// so never on a loop.
//
// It is a bounded search over orders of devices (search/search.h): within half a per cent of the
// best plan where the best is known (README.md). Same request, same plan.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/problem/plan.h"

namespace strata {

// kInvalidArgument: the request contradicts itself, or names a node, device or layer that is not
// there, by name; kFailedPrecondition: an assignment that the architecture does not allow, or no
// link between the nodes; kResourceExhausted: the model does not fit, with the bytes that are
// missing and where.
absl::StatusOr<Plan> MakePlan(const PlanRequest& request);

// The plan in which as many stages of `kept` as possible stay, and only the layers that none of
// them has are placed (kept_stages.h); a device may have several stages then. The request counts
// the memory of `kept` as free, and assigns nothing by hand. kNotFound: none of them can stay, or
// there is no room for the rest around them; else as MakePlan().
absl::StatusOr<Plan> MakePlanAround(const PlanRequest& request, const std::vector<KeptStage>& kept);

// The time of a step, or of its slowest part, as the plan's objective wants it short.
double SecondsOf(const Plan& plan);

// "node-1" or, where the node has several devices, "node-1/CUDA0".
std::string PlaceName(const PlanRequest& request, size_t device);

}  // namespace strata
