// Explains a plan, in a line for each device, with hints to make it faster. Every figure is that of
// a computed plan, not a guess. Internal to the planner; pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "coordinator/planner/problem/plan.h"
#include "coordinator/planner/problem/problem.h"

namespace strata {

std::vector<DeviceLine> ExplainDevices(const PlanProblem& problem, const Pieces& pieces,
                                       bool is_by_hand);

// Plans again with one thing better: a device's memory doubled, a hop's link as fast as the best
// one of the request. Only among the devices in use and a few others, so the real gain is at
// least as large. Gains below 2 % are not worth a line.
std::vector<std::string> Hints(const PlanRequest& request, const PlanProblem& problem,
                               const Pieces& pieces);

}  // namespace strata
