// A bounded search for the best plan: shortlists of devices that look good from several nodes, and
// a local search over their order, in which the choice of devices and cuts for each order is exact
// (problem/solve.h); then small changes at random (anneal.h). Deterministic: its work is counted
// and not timed. Internal to the planner; pure; any thread.
#pragma once

#include "coordinator/planner/problem/problem.h"
#include "coordinator/planner/problem/solve.h"

namespace strata {

// Searches for the request's objective, in about `work_max` steps of the inner loops, some 3e8 a
// second, and fewer where there are few devices. No pieces: no order that was tried can hold the
// model and has links.
inline constexpr double kSearchWorkMax = 6e8;
Solution SearchPlan(const PlanProblem& problem, double work_max = kSearchWorkMax);

}  // namespace strata
