// What stages cost, what they must keep to, and the cheapest of one given order of devices. Over
// all orders: plan_exact.h and plan_search.h. Internal to the planner; pure; any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "coordinator/planner/plan_problem.h"

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

// Stages and what they cost. `cost` of what SolveOrder gives leaves out what devices share: a
// lower bound.
struct Solution {
  double cost = kNever;
  Pieces pieces;
  bool is_exact = true;  // the cheapest; false: the search was cut short
  double gap = 0;        // what costs less by more than this share of `cost` does not exist
  bool found() const { return !pieces.empty(); }
};

// Cost of these stages, sharing included; kNever when a hop is not possible. Limits and memory are
// not looked at.
double CostOf(const PlanProblem& problem, Aim aim, const Pieces& pieces);
// Whether they keep within memory, that of pools included, and `limits`.
bool Keeps(const PlanProblem& problem, const Limits& limits, const Pieces& pieces);

// Each device in turn, the one with the most memory first, as many layers as it can hold. Fits, but
// may not reach the model's end (then nobody's stages might) or have links.
Pieces PackLargestFirst(const PlanProblem& problem);

// The cheapest that takes candidates in this order, skipping any.
Solution SolveOrder(const PlanProblem& problem, Aim aim, const Limits& limits,
                    absl::Span<const size_t> order);

// Devices that share something, by branch and bound over how much each may get of it. `relaxed`
// solves without sharing and is called some `runs_max` times at most. `known`, if not empty, are
// stages that only need to be beaten.
using Relaxed = absl::FunctionRef<Solution(Aim aim, const Limits& limits)>;
struct SharedOptions {
  Pieces known;
  size_t runs_max = 1;
};
Solution SolveShared(const PlanProblem& problem, Aim aim, const Limits& limits,
                     const SharedOptions& options, Relaxed relaxed);

// The best for the request's objective; for kThroughput the least sum among those with the least
// maximum.
Solution SolveObjective(const PlanProblem& problem, const SharedOptions& options, Relaxed relaxed);

}  // namespace strata
