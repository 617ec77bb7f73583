// The cheapest paths from every point to the model's end, for every set of candidates that is still
// free: dynamic programming over subsets (Held and Karp 1962, "A dynamic programming approach to
// sequencing problems", with stages for cities), from the end. A group (visits.h) is visited
// once, within its limits, or several times at prices on what it shares: a lower bound. Internal to
// the planner; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/planner/exact/blocks.h"
#include "coordinator/planner/exact/stages.h"
#include "coordinator/planner/exact/visits.h"
#include "coordinator/planner/problem/solve.h"

namespace strata {

// The least of any run of values, after one pass over them.
class RangeMin {
 public:
  explicit RangeMin(size_t n);
  double* values() { return table_.data(); }  // [n], to be filled in before Build
  void Build();
  double Least(size_t first, size_t last) const {  // inclusive
    const size_t level = levels_[last - first];
    const double* row = &table_[level * n_];
    const double a = row[first], b = row[last + 1 - (size_t{1} << level)];
    return a < b ? a : b;
  }

 private:
  size_t n_;
  std::vector<uint8_t> levels_;  // [lengths less 1]
  std::vector<double> table_;    // [levels, n]
};

struct Visit {
  size_t group = 0;
  bool again = false;  // not the only one of its group
  Pieces pieces;       // nodes may differ from the entries that the visit's cost is based on
};

class PlanTable {
 public:
  // For at most 16 candidates; some 2^n · n · points · 16 bytes.
  PlanTable(size_t n, size_t n_points);

  // Sets the problem of all fills until the next call. The arguments outlive that.
  void Start(const StageModel& model, const Groups& groups, const PathCosts& costs);
  // The cost of the cheapest path that visits each group once; kNever: there is none. REQUIRES
  // for kMax: all groups are single candidates.
  double Fill(Aim aim);
  // The same with paths that visit groups again, at these prices (`priced` is the costs with them,
  // used until the next fill), and with single candidates at these prices, too: a lower bound once
  // the prices of resources outside groups are subtracted.
  double FillPriced(const PathCosts& priced, absl::Span<const double> prices);
  Pieces Path() const;  // of Fill; empty: there is none

  // The visits of the last fill of either kind; a visit that is not its group's only one may exceed
  // limits. Empty: there is no path.
  std::vector<Visit> Visits() const;

  // The least remaining cost, with the candidates in `free` unused and all layers before `point`
  // done. After: at `entry`, without going on to its own group. From: when `entry` comes next.
  // Again: when it does and its group is visited again later, or was before.
  double After(size_t free, size_t entry, size_t point) const {
    return after_[(free * n_ + entry) * n_points_ + point];
  }
  double From(size_t free, size_t entry, size_t point) const {
    return from_[(free * n_ + entry) * n_points_ + point];
  }
  double Again(size_t free, size_t entry, size_t point) const {
    return again_.empty() ? kNever : again_[(free * n_ + entry) * n_points_ + point];
  }
  // Visits that are their group's only one; with more than two candidates, lower bounds.
  const std::vector<VisitBlock>& Once(size_t group) const { return once_[group]; }
  // Credit for a group that is left partly used: its later stages pay it back.
  double Credit(size_t group) const { return credits_[group]; }

 private:
  void AddBlock(const VisitBlock& block, const double* after, double credit, double* from) const;
  void AddStage(const PathCosts& costs, size_t candidate, const double* after, double credit,
                double* from);
  double FillAll();
  void FillGroup(size_t free, size_t group);
  void FillAgain(size_t free, size_t group);
  void FillAfter(size_t free, size_t entry);
  // The visit that From(free, entry, point) is based on, and the candidates and the entry that
  // remain after it.
  Visit VisitFrom(size_t free, size_t entry, size_t point, size_t* left, size_t* out) const;
  double* Row(std::vector<double>* table, size_t free, size_t entry) const {
    return &(*table)[(free * n_ + entry) * n_points_];
  }

  const size_t n_, n_points_;
  Aim aim_ = Aim::kSum;
  const StageModel* model_ = nullptr;
  const Groups* groups_ = nullptr;
  const PathCosts* costs_ = nullptr;
  const PathCosts* priced_ = nullptr;           // nullptr: no group is visited again
  std::vector<double> credits_;                 // [groups]
  std::vector<std::vector<VisitBlock>> once_;   // [groups]
  std::vector<std::vector<VisitBlock>> parts_;  // [groups], of visits that are not the only one
  std::vector<double> after_, from_, again_;    // [sets, entries, points]
  std::vector<double> row_;                     // [points]
  RangeMin least_;
};

// The cheapest path that takes candidates in this order, skipping any; kNever and no pieces: there
// is none.
double CheapestInOrder(const StageModel& model, const PathCosts& costs,
                       absl::Span<const size_t> order, Pieces* pieces);

}  // namespace strata
