// The best of all plans for up to a dozen candidates, with a proof. What devices share, memory
// above all, couples stages that a recurrence over subsets takes for independent: prices on it
// (plan_prices.h) give a bound that is close, and labels (plan_labels.h) look at all that lies
// between the bound and the best plan known. Deterministic: the work is bounded by counting, not by
// a clock. Internal to the planner; pure; any thread.
#pragma once

#include "coordinator/planner/plan_problem.h"
#include "coordinator/planner/plan_solve.h"

namespace strata {

inline constexpr double kExactWorkMax = 2e7;  // steps of the labels' inner loop: half a second

struct ExactOptions {
  Pieces known;  // a plan that only needs to be beaten, or empty
  double work_max = kExactWorkMax;
};

// For the request's objective; for kThroughput the least sum among the plans with the least
// maximum. Where the work was too much, the best that was found, and how far from it a better one
// may be.
Solution SolveExact(const PlanProblem& problem, const ExactOptions& options);

}  // namespace strata
