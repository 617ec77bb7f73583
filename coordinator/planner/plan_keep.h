// A plan around stages that are loaded already: they stay where they are, and only the layers that
// nobody has are placed, as further stages, also on devices that have one. Nothing is moved that
// need not be: what a plan made from nothing would gain is told by comparing the two. Internal to
// the planner; pure; any thread.
#pragma once

#include <vector>

#include "coordinator/planner/plan.h"
#include "coordinator/planner/plan_solve.h"

namespace strata {

// The stages of `kept` that can stay, in layer order: those of a device that takes part, cut where
// the architecture may be, that fit together. Where two have the same layers, the longer one.
Pieces KeptPieces(const PlanProblem& problem, const std::vector<KeptStage>& kept);

// With the layers that are missing between them: each gap goes to one device where one has room for
// it, else to two, else to as few as possible, in the way that costs least for the request's
// objective. Empty: they do not fit.
Pieces FillGaps(const PlanProblem& problem, const Pieces& kept);

}  // namespace strata
