// A plan around stages that are loaded already: they stay where they are, and only the layers that
// none of them has are placed, as further stages, also on devices that have one. No other layer is
// moved: compare with a new plan to see what that would gain. Internal to
// the planner; pure; any thread.
#pragma once

#include <vector>

#include "coordinator/planner/problem/plan.h"
#include "coordinator/planner/problem/solve.h"

namespace strata {

// The stages of `kept` that can stay, in layer order: on a device that takes part, cut where the
// architecture allows, and fitting together. Where two have the same layers, the longer one.
Pieces KeptPieces(const PlanProblem& problem, const std::vector<KeptStage>& kept);

// `kept` with the missing layers filled in: each gap goes to one device where one has room for it,
// else to two, else to as few as possible, at the least cost for the request's objective. Empty:
// the layers do not fit.
Pieces FillGaps(const PlanProblem& problem, const Pieces& kept);

}  // namespace strata
