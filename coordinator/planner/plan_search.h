// The planner's bounded search, for more devices than an exact plan can be made of: shortlists of
// devices that look good from several places, and a local search over their order, in which the
// choice of devices and cuts for each order is exact (plan_solve.h). Deterministic. Internal to the
// planner; pure; any thread.
#pragma once

#include "coordinator/planner/plan_problem.h"
#include "coordinator/planner/plan_solve.h"

namespace strata {

// For the request's objective, in about `work_max` steps of the inner loops, 3e8 to a second or so.
// is_exact is false. Not found: no order that it tried can hold the
// model or has links.
inline constexpr double kSearchWorkMax = 6e8;
Solution SearchPlan(const PlanProblem& problem, double work_max = kSearchWorkMax);

}  // namespace strata
