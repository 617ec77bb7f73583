// The best of all plans for up to a dozen candidates, with a proof. Shared resources, memory above
// all, couple stages that a recurrence over subsets treats as independent: prices on them
// (prices.h) give a close bound, and labels (labels.h) examine all plans between the
// bound and the best plan known. Deterministic: the work is bounded by counting, not by a clock.
// Internal to the planner; pure; any thread.
#pragma once

#include "coordinator/planner/problem/problem.h"
#include "coordinator/planner/problem/solve.h"

namespace strata {

inline constexpr double kExactWorkMax = 2e7;  // steps of the labels' inner loop: half a second

struct ExactOptions {
  Pieces known;  // a known plan to beat, or empty
  double work_max = kExactWorkMax;
};

// For the request's objective; for kThroughput the least sum among the plans with the least
// maximum. Where the work limit was reached, the best plan found, and a bound on the distance to a
// better one.
Solution SolveExact(const PlanProblem& problem, const ExactOptions& options);

}  // namespace strata
