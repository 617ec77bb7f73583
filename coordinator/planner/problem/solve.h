// Costs and limits of given stages, and the cheapest stages for one given order of devices. Over
// all orders: search/search.h. Internal to the planner; pure; any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "coordinator/planner/problem/problem.h"

namespace strata {

enum class Aim {
  kSum,  // of all stages and hops
  kMax,  // the slowest stage or hop, or the stages that share bandwidth or cores together
};

inline Aim AimOf(Objective objective) {
  return objective == Objective::kLatency ? Aim::kSum : Aim::kMax;
}

inline double Join(Aim aim, double a, double b) {
  return aim == Aim::kSum ? a + b : std::max(a, b);
}

struct Limits {
  std::vector<Caps> caps;  // [candidates]
  double hop_s = kNever;   // of each hop
  double pool_s = kNever;  // of all stages that share bandwidth or cores
};
Limits NoLimits(const PlanProblem& problem);

// Stages and their cost. The `cost` from SolveOrder ignores shared resources: a lower bound.
struct Solution {
  double cost = kNever;
  Pieces pieces;
  bool found() const { return !pieces.empty(); }
};

// The cost of these stages, sharing included; kNever when a hop is not possible. Limits and memory
// are not checked.
double CostOf(const PlanProblem& problem, Aim aim, const Pieces& pieces);
// Whether the stages keep within memory, that of pools included, and `limits`.
bool Keeps(const PlanProblem& problem, const Limits& limits, const Pieces& pieces);

// Packs each device in turn, the one with the most memory first, with as many layers as it can
// hold. The stages fit, but may not reach the model's end (then perhaps no stages do) or have
// links.
Pieces PackLargestFirst(const PlanProblem& problem);

// The cheapest stages that take candidates in this order, skipping any.
Solution SolveOrder(const PlanProblem& problem, Aim aim, const Limits& limits,
                    absl::Span<const size_t> order);

// Solves with shared resources, by branch and bound over each device's part of them. `relaxed`
// solves without sharing and is called about `runs_max` times at most. `known`, if not empty, are
// known stages to beat.
using Relaxed = absl::FunctionRef<Solution(Aim aim, const Limits& limits)>;
struct SharedOptions {
  Pieces known;
  size_t runs_max = 1;
};
Solution SolveShared(const PlanProblem& problem, Aim aim, const Limits& limits,
                     const SharedOptions& options, Relaxed relaxed);

// The best stages for the request's objective; for kThroughput the least sum among those with the
// least maximum.
Solution SolveObjective(const PlanProblem& problem, const SharedOptions& options, Relaxed relaxed);

}  // namespace strata
