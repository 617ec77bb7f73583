// A plan made better by small changes at random: cuts shifted, devices exchanged, moved, put in and
// left out; now and then a worse one is gone on from, ever more seldom (Kirkpatrick, Gelatt and
// Vecchi 1983, "Optimization by simulated annealing"). Where devices share a machine this finds
// what the search over orders (plan_search.h) does not: what is shared counts in each change.
// Deterministic. Internal to the planner; pure; any thread.
#pragma once

#include <cstddef>

#include "coordinator/planner/plan_problem.h"
#include "coordinator/planner/plan_solve.h"

namespace strata {

struct AnnealOptions {
  Aim aim = Aim::kSum;
  double seconds_max =
      kNever;           // of a stage, a hop, and of the stages that share bandwidth or cores
  double work_max = 0;  // steps of the inner loop, some ns each
};

// `pieces` is a plan that keeps to all limits, or empty; the result is one that is no worse.
Pieces Anneal(const PlanProblem& problem, const AnnealOptions& options, const Pieces& pieces);

}  // namespace strata
