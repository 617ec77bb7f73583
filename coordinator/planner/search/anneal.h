// A plan made better by small changes at random: cuts shifted, devices exchanged, moved, put in and
// left out; now and then a worse one is accepted, ever more seldom (Kirkpatrick, Gelatt and Vecchi
// 1983, "Optimization by simulated annealing"). Where devices share a machine this finds plans that
// the search over orders (search.h) does not: shared resources count in each change.
// Deterministic. Internal to the planner; pure; any thread.
#pragma once

#include <cstddef>

#include "coordinator/planner/problem/problem.h"
#include "coordinator/planner/problem/solve.h"

namespace strata {

struct AnnealOptions {
  Aim aim = Aim::kSum;
  double seconds_max = kNever;  // for a stage, a hop, and the stages that share bandwidth or cores
  double work_max = 0;          // steps of the inner loop, some ns each
};

// REQUIRES: `pieces` is a plan within all limits, or empty. The result is no worse.
Pieces Anneal(const PlanProblem& problem, const AnnealOptions& options, const Pieces& pieces);

}  // namespace strata
