// Orders of devices for the bounded search, with two devices that share a resource as one unit:
// their division of it is computed exactly wherever the unit stands, instead of by branching.
// Internal to the planner; not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/planner/problem/problem.h"
#include "coordinator/planner/problem/solve.h"

namespace strata {

class Units {
 public:
  // Every candidate is in one unit at most: of more than two that share, the fastest and the one
  // that adds the most memory; `alone`: every candidate is a unit of its own. `problem` outlives
  // this.
  Units(const PlanProblem& problem, Aim aim, bool alone);

  size_t size() const { return units_.size(); }
  absl::Span<const size_t> members(size_t unit) const { return units_[unit]; }
  size_t unit_of(size_t candidate) const { return unit_of_[candidate]; }  // size(): in none
  bool has_pairs() const { return has_pairs_; }

  // The cheapest solution that takes units in this order, skipping any; the devices of a unit
  // follow each other, in either order. Within a unit, the limits of shared resources hold, and
  // count in its cost.
  Solution Solve(absl::Span<const size_t> order);

 private:
  struct UnitPath {  // through a unit
    size_t first = 0, last = 0;
    const std::vector<double>* pair = nullptr;  // [begins, ends]; nullptr: one stage
  };

  std::vector<UnitPath> PathsOf(size_t unit);
  // The costs of `first` and then `second` from point to point, with the best cut between.
  const std::vector<double>& PairCosts(size_t first, size_t second);
  double PairCost(size_t first, size_t second, size_t begin, size_t cut, size_t end) const;
  void AddPath(const UnitPath& path, const std::vector<double>& before, double* after) const;

  const PlanProblem& problem_;
  const Aim aim_;
  std::vector<std::vector<size_t>> units_;
  std::vector<size_t> unit_of_;               // [candidates]
  std::vector<std::vector<double>> seconds_;  // [candidates, points], of all layers before
  bool has_pairs_ = false;
  std::vector<std::vector<size_t>> latest_;  // [candidates, points]
  std::map<std::pair<size_t, size_t>, std::vector<double>> pairs_;
};

}  // namespace strata
