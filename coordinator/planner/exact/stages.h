// A PlanProblem in the form that the exact planner needs: a stage's cost and its use of shared
// resources are linear in its two ends, so that shared resources can be priced. The stage with the
// whole model is left out; it shares with no other and is considered separately. Internal to the
// planner; immutable once made; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/planner/problem/problem.h"

namespace strata {

// A value of a stage, linear in the points where it begins and ends.
struct Linear {
  double fixed = 0;
  std::vector<double> before;  // [points]
  double Of(size_t begin, size_t end) const { return fixed + before[end] - before[begin]; }
};

// A resource that several candidates share: the sum of their stages' uses is within the capacity.
struct Shared {
  double capacity = 0;
  std::vector<size_t> users;  // candidates, ascending
  std::vector<Linear> takes;  // [candidates]; empty `before`: not a user
};

// Costs of the parts of a path; kNever: not allowed. `nodes` are numbered anew, only those with
// candidates.
struct PathCosts {
  std::vector<Linear> stages;  // [candidates]
  std::vector<double> hops;    // [nodes, candidates]
  std::vector<double> in;      // [candidates], from the coordinator
  std::vector<double> back;    // [nodes], to the coordinator
};

// Ends [first, last] that a stage which begins at `begin` may have.
struct Window {
  uint32_t begin = 0, first = 0, last = 0;
};

class StageModel {
 public:
  // No stage, hop or sum of stages that share bandwidth or cores takes more than `seconds_max`.
  // `problem` outlives this.
  StageModel(const PlanProblem& problem, double seconds_max);

  size_t n() const { return n_; }
  size_t n_points() const { return n_points_; }
  size_t n_nodes() const { return n_nodes_; }
  size_t last_point() const { return n_points_ - 1; }
  size_t node(size_t candidate) const { return node_[candidate]; }

  const PathCosts& seconds() const { return seconds_; }
  // By begin, then first. No stage is the whole model.
  const std::vector<Window>& windows(size_t candidate) const { return windows_[candidate]; }
  // Where the windows from `begin` start in windows(); [points + 1].
  const std::vector<uint32_t>& windows_at(size_t candidate) const { return windows_at_[candidate]; }
  // Candidates before this one, as bits, that are equal to it but for the number.
  uint32_t twins_before(size_t candidate) const { return twins_before_[candidate]; }

  // The resources with limits. Those that no plan could use up are left out.
  const std::vector<Shared>& shared() const { return shared_; }
  // Limits on the number of layers, which follow from `shared` as layers are whole. For prices.
  const std::vector<Shared>& counts() const { return counts_; }
  size_t n_prices() const { return shared_.size() + counts_.size(); }
  const Shared& Priced(size_t i) const {
    return i < shared_.size() ? shared_[i] : counts_[i - shared_.size()];
  }

  // Whether a stage without the model's first and last segment has the same cost and uses anywhere.
  bool uniform() const { return uniform_; }

  // Costs with a price for the capacity of each shared resource and count; with `free`, hops and
  // seconds cost nothing (parts that are not allowed stay so).
  PathCosts WithPrices(absl::Span<const double> prices, bool free) const;
  // The share of its capacity that the stages use of the i-th priced resource.
  double Used(size_t i, const Pieces& pieces) const;
  // False: even if stages could lie anywhere, the model's layers would be too many.
  bool MayHoldAll() const;
  // Whether the stages keep to the capacities of all shared resources.
  bool Fits(const Pieces& pieces) const;

 private:
  void AddShared(const PlanProblem& problem, double seconds_max);
  void AddCount(const Shared& shared);
  void FindTwins();
  void FindUniform(const PlanProblem& problem);

  size_t n_ = 0, n_points_ = 0, n_nodes_ = 0;
  std::vector<size_t> node_;
  PathCosts seconds_;
  std::vector<std::vector<Window>> windows_;
  std::vector<std::vector<uint32_t>> windows_at_;
  std::vector<uint32_t> twins_before_;
  std::vector<size_t> longest_;  // [candidates], points that a stage may span
  std::vector<Shared> shared_, counts_;
  std::vector<double> layers_most_;  // [counts], by all that share it
  bool uniform_ = false;
};

}  // namespace strata
