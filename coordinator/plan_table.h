// The cheapest ways from every point to the model's end, for every set of candidates that is still
// free: dynamic programming over subsets (Held and Karp 1962, "A dynamic programming approach to
// sequencing problems", with stages for cities), from the end. Internal to the planner; not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/plan_solve.h"
#include "coordinator/plan_stages.h"

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

class SubsetTable {
 public:
  // For at most 16 candidates; some 2^n · n · points · 12 bytes.
  SubsetTable(size_t n, size_t n_nodes, size_t n_points);

  // Of a model of that size. The cost of the cheapest path; kNever: there is none. Both arguments
  // are used until the next call.
  double Fill(Aim aim, const StageModel& model, const PathCosts& costs);
  Pieces Path() const;  // empty: there is none

  // What is left to pay at least: in `node` with all layers before `point` done and the candidates
  // in `free` not used; when the stage of `candidate`, one of them, begins at `point`.
  double After(size_t free, size_t node, size_t point) const {
    return after_[(free * n_nodes_ + node) * n_points_ + point];
  }
  double From(size_t free, size_t candidate, size_t point) const {
    return from_[(free * n_ + candidate) * n_points_ + point];
  }

 private:
  void FillFrom(size_t free, size_t candidate);
  void FillAfter(size_t free, size_t node);
  size_t BestEnd(size_t free, size_t candidate, size_t begin) const;

  const size_t n_, n_nodes_, n_points_;
  Aim aim_ = Aim::kSum;
  const StageModel* model_ = nullptr;
  const PathCosts* costs_ = nullptr;
  std::vector<size_t> members_;    // [nodes], candidates as bits
  std::vector<double> after_;      // [sets, nodes, points]
  std::vector<double> from_;       // [sets, candidates, points]
  std::vector<uint32_t> reached_;  // [sets, candidates], first point with a way to the end
  RangeMin least_;
};

// The cheapest path that takes candidates in this order, skipping any; kNever and no pieces: there
// is none.
double CheapestInOrder(const StageModel& model, const PathCosts& costs,
                       absl::Span<const size_t> order, Pieces* pieces);

}  // namespace strata
