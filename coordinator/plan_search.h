// The planner's bounded search, for more devices than an exact plan can be made of: shortlists of
// devices that look good from several places, and a local search over their order, in which the
// choice of devices and cuts for each order is exact (plan_solve.h). Deterministic. Internal to the
// planner; pure; any thread.
#pragma once

#include "coordinator/plan_problem.h"
#include "coordinator/plan_solve.h"

namespace strata {

// For the request's objective. is_exact is false. Not found: no order that it tried can hold the
// model or has links.
Solution SearchPlan(const PlanProblem& problem);

}  // namespace strata
