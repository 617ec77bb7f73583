#include "coordinator/planner/exact/stages.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

namespace strata {
namespace {

// Sums in another order differ by rounding.
constexpr double kCapacityRounding = 1e-12;
constexpr double kEven = 1e-10;  // of a layer

// How many layers fit into a number of stages, each of which lies where it uses least.
class Filling {
 public:
  Filling(const Shared& shared, const std::vector<size_t>& longest) {
    const size_t n_layers = shared.takes[shared.users.front()].before.size() - 1;
    least_.assign(shared.users.size() + 1, std::vector<double>(n_layers + 1, kNever));
    least_[0][0] = 0;
    for (size_t user = 0; user < shared.users.size(); ++user) {
      const size_t c = shared.users[user];
      const std::vector<double> stage = LeastOf(shared.takes[c], longest[c]);
      for (size_t k = user + 1; k > 0; --k) {
        for (size_t before = 0; before < n_layers; ++before) {
          const double taken = least_[k - 1][before];
          if (taken == kNever) continue;
          const size_t most = std::min(stage.size() - 1, n_layers - before);
          double* row = &least_[k][before];
          for (size_t layers = 1; layers <= most; ++layers) {
            row[layers] = std::min(row[layers], taken + stage[layers]);
          }
        }
      }
    }
  }
  bool empty() const { return first_ == kNever; }
  size_t users() const { return least_.size() - 1; }

  // With `k` stages, the model's first or last among them or not; -1: they do not fit at all.
  double Most(size_t k, double capacity, bool first, bool last) const {
    double left = capacity * (1 + kCapacityRounding);
    if (first) left -= first_;
    if (last) left -= last_;
    for (size_t layers = least_[k].size(); layers-- > k;) {
      if (least_[k][layers] <= left) return static_cast<double>(layers);
    }
    return -1;
  }

 private:
  // By the number of layers, up to `longest`. The ends of the model use more; their surplus over a
  // layer is counted apart.
  std::vector<double> LeastOf(const Linear& takes, size_t longest) {
    std::vector<double> before = takes.before;
    const size_t end = before.size() - 1;
    double layer = kNever;
    for (size_t p = 1; p + 1 < end; ++p) layer = std::min(layer, before[p + 1] - before[p]);
    if (layer == kNever || longest == 0) return {0};
    const double first = std::max(0.0, before[1] - before[0] - layer);
    const double last = std::max(0.0, before[end] - before[end - 1] - layer);
    before[0] += first;
    before[end] -= last;
    first_ = std::min(first_, first);
    last_ = std::min(last_, last);
    std::vector<double> least(longest + 1, kNever);
    for (size_t begin = 0; begin < end; ++begin) {
      for (size_t layers = 1; layers <= std::min(longest, end - begin); ++layers) {
        least[layers] = std::min(least[layers], before[begin + layers] - before[begin]);
      }
    }
    for (double& each : least) each += takes.fixed;
    return least;
  }

  std::vector<std::vector<double>> least_;  // [stages, layers]
  double first_ = kNever, last_ = kNever;
};

bool Same(const Linear& a, const Linear& b) { return a.fixed == b.fixed && a.before == b.before; }

}  // namespace

StageModel::StageModel(const PlanProblem& problem, double seconds_max)
    : n_(problem.candidates().size()), n_points_(problem.points().size()) {
  const auto& candidates = problem.candidates();
  std::map<size_t, size_t> numbers;
  std::vector<size_t> one_of;  // [nodes], a candidate
  for (size_t c = 0; c < n_; ++c) {
    const auto [at, is_new] = numbers.emplace(candidates[c].node, one_of.size());
    if (is_new) one_of.push_back(c);
    node_.push_back(at->second);
  }
  n_nodes_ = one_of.size();
  const auto allowed = [&](double s) { return s <= seconds_max ? s : kNever; };
  for (size_t node = 0; node < n_nodes_; ++node) {
    for (size_t c = 0; c < n_; ++c) {
      seconds_.hops.push_back(allowed(problem.Hop(one_of[node], c)));
    }
    seconds_.back.push_back(allowed(problem.HopBack(one_of[node])));
  }
  Caps caps;
  caps.seconds = caps.memory_seconds = seconds_max;
  windows_.resize(n_);
  windows_at_.resize(n_);
  longest_.assign(n_, 0);
  for (size_t c = 0; c < n_; ++c) {
    seconds_.in.push_back(allowed(problem.HopIn(c)));
    Linear seconds = {candidates[c].overhead_s, candidates[c].seconds};
    seconds.before.back() += candidates[c].head_s;
    seconds_.stages.push_back(std::move(seconds));
    const std::vector<size_t> latest = problem.LatestEnds(c, caps);
    for (size_t begin = 0; begin < n_points_; ++begin) {
      windows_at_[c].push_back(static_cast<uint32_t>(windows_[c].size()));
      if (begin == last_point()) break;
      const size_t most = std::min(latest[begin], begin == 0 ? last_point() - 1 : last_point());
      for (const auto& [first, stop] : problem.Runs(begin)) {
        const size_t last = std::min(stop - 1, most);
        if (first > last) continue;
        windows_[c].push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(first),
                               static_cast<uint32_t>(last)});
        longest_[c] = std::max(longest_[c], last - begin);
      }
    }
    windows_at_[c].push_back(static_cast<uint32_t>(windows_[c].size()));
  }
  AddShared(problem, seconds_max);
  FindTwins();
  FindUniform(problem);
}

void StageModel::AddShared(const PlanProblem& problem, double seconds_max) {
  const auto& candidates = problem.candidates();
  std::map<int, Shared> memory, bandwidth, cores;
  const auto share = [&](std::map<int, Shared>* pools, int pool, double capacity, size_t c) {
    Shared& shared = (*pools)[pool];
    shared.capacity = capacity;
    shared.users.push_back(c);
    shared.takes.resize(n_);
    return &shared.takes[c];
  };
  const size_t end = last_point();
  for (size_t c = 0; c < n_; ++c) {
    const PlanProblem::Candidate& candidate = candidates[c];
    if (candidate.memory_pool != kOwnPool && end >= 2) {
      const auto bytes = [&](size_t from, size_t to) {
        return static_cast<double>(problem.StageBytes(from, to));
      };
      Linear* takes = share(&memory, candidate.memory_pool,
                            static_cast<double>(problem.PoolBytes(candidate.memory_pool)), c);
      // From the middle outwards: whole bytes, so without rounding.
      takes->before.assign(n_points_, 0);
      takes->fixed = static_cast<double>(problem.StageFixedBytes());
      for (size_t p = 2; p < end; ++p) takes->before[p] = bytes(1, p) - takes->fixed;
      takes->before[0] = takes->fixed - bytes(0, 1);
      takes->before[end] = bytes(1, end) - takes->fixed;
    }
    if (seconds_max == kNever) continue;
    if (candidate.bandwidth_pool != kOwnPool) {
      Linear* takes = share(&bandwidth, candidate.bandwidth_pool, seconds_max, c);
      takes->before = candidate.memory_seconds;
      takes->before.back() += candidate.head_memory_s;
    }
    if (candidate.cores_pool != kOwnPool) {
      *share(&cores, candidate.cores_pool, seconds_max, c) = seconds_.stages[c];
    }
  }
  // A resource needs no limit if its users use at least as much of another one of the same
  // capacity: bandwidth beside cores, say.
  const auto follows = [&](const Shared& shared, const Shared& other) {
    return &shared != &other && shared.capacity == other.capacity &&
           std::all_of(shared.users.begin(), shared.users.end(), [&](size_t c) {
             const Linear& more = other.takes[c];
             if (more.before.empty() || shared.takes[c].fixed > more.fixed) return false;
             for (size_t p = 0; p < end; ++p) {
               if (shared.takes[c].before[p + 1] - shared.takes[c].before[p] >
                   more.before[p + 1] - more.before[p]) {
                 return false;
               }
             }
             return true;
           });
  };
  std::erase_if(bandwidth, [&](const auto& each) {
    return std::any_of(cores.begin(), cores.end(),
                       [&](const auto& other) { return follows(each.second, other.second); });
  });
  for (const auto* pools : {&memory, &bandwidth, &cores}) {
    for (const auto& [pool, shared] : *pools) {
      double most = 0;
      for (const size_t c : shared.users) {
        double stage = 0;
        for (const Window& window : windows_[c]) {
          stage = std::max(stage, shared.takes[c].Of(window.begin, window.last));
        }
        most += stage;
      }
      if (shared.users.size() < 2 || most <= shared.capacity) continue;
      shared_.push_back(shared);
    }
  }
  for (const Shared& shared : shared_) AddCount(shared);
}

void StageModel::AddCount(const Shared& shared) {
  const Filling filling(shared, longest_);
  if (filling.empty()) return;
  // layers + per_stage · stages + first + last ≤ capacity, for every number of stages that fits.
  std::vector<double> most = {0};
  for (size_t k = 1; k <= filling.users(); ++k) {
    const double count = filling.Most(k, shared.capacity, false, false);
    if (count < 0) break;
    most.push_back(count);
  }
  if (most.size() < 2) return;
  const size_t k_max = most.size() - 1;
  double per_stage = k_max > 1 ? kNever : 0;
  for (size_t k = 2; k <= k_max; ++k) per_stage = std::min(per_stage, most[k - 1] - most[k]);
  per_stage = std::max(per_stage, 0.0);
  Shared count;
  for (size_t k = 1; k <= k_max; ++k) {
    count.capacity = std::max(count.capacity, most[k] + static_cast<double>(k) * per_stage);
  }
  double first = kNever, last = kNever, both = kNever;
  const auto room = [&](size_t k, bool with_first, bool with_last, double* least) {
    const double layers = filling.Most(k, shared.capacity, with_first, with_last);
    if (layers < 0) return;
    *least = std::min(*least, count.capacity - static_cast<double>(k) * per_stage - layers);
  };
  for (size_t k = 1; k <= k_max; ++k) {
    room(k, true, false, &first);
    room(k, false, true, &last);
    if (k > 1) room(k, true, true, &both);
  }
  const auto limit = [&](double most_wanted) { return std::min(most_wanted, count.capacity + 1); };
  first = limit(first);
  last = std::min(limit(last), std::max(0.0, both - first));
  count.users = shared.users;
  count.takes.resize(n_);
  for (const size_t c : shared.users) {
    Linear& takes = count.takes[c];
    takes.fixed = per_stage;
    takes.before.resize(n_points_);
    std::iota(takes.before.begin(), takes.before.end(), 0.0);
    takes.before.front() -= first;
    takes.before.back() += last;
  }
  counts_.push_back(std::move(count));
  layers_most_.push_back(*std::max_element(most.begin(), most.end()));
}

bool StageModel::MayHoldAll() const {
  // Each candidate counts once: in the shared resource that allows the fewest layers.
  std::vector<size_t> by_size(counts_.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  const auto saved = [&](size_t i) {
    double alone = 0;
    for (const size_t c : counts_[i].users) alone += static_cast<double>(longest_[c]);
    return alone - layers_most_[i];
  };
  std::sort(by_size.begin(), by_size.end(),
            [&](size_t a, size_t b) { return saved(a) > saved(b); });
  std::vector<bool> counted(n_);
  double layers = 0;
  for (const size_t i : by_size) {
    const std::vector<size_t>& users = counts_[i].users;
    if (saved(i) <= 0 ||
        std::any_of(users.begin(), users.end(), [&](size_t c) -> bool { return counted[c]; })) {
      continue;
    }
    for (const size_t c : users) counted[c] = true;
    layers += layers_most_[i];
  }
  for (size_t c = 0; c < n_; ++c) layers += counted[c] ? 0 : static_cast<double>(longest_[c]);
  return layers >= static_cast<double>(last_point());
}

void StageModel::FindTwins() {
  twins_before_.assign(n_, 0);
  const auto windows_equal = [&](size_t a, size_t b) {
    return std::equal(windows_[a].begin(), windows_[a].end(), windows_[b].begin(),
                      windows_[b].end(), [](const Window& x, const Window& y) {
                        return x.begin == y.begin && x.first == y.first && x.last == y.last;
                      });
  };
  for (size_t b = 0; b < n_; ++b) {
    for (size_t a = 0; a < b; ++a) {
      const bool alike = node_[a] == node_[b] && Same(seconds_.stages[a], seconds_.stages[b]) &&
                         windows_equal(a, b) &&
                         std::all_of(shared_.begin(), shared_.end(), [&](const Shared& shared) {
                           return Same(shared.takes[a], shared.takes[b]);
                         });
      if (alike) twins_before_[b] |= 1u << a;
    }
  }
}

void StageModel::FindUniform(const PlanProblem& problem) {
  const auto even = [&](const auto& before) {
    for (size_t p = 2; p + 1 < last_point(); ++p) {
      const auto first = static_cast<double>(before[2] - before[1]);
      const auto each = static_cast<double>(before[p + 1] - before[p]);
      if (std::abs(each - first) > kEven * std::abs(first)) return false;
    }
    return true;
  };
  uniform_ = even(problem.points());
  // Bytes that are kept in memory need not all be read in a step.
  for (size_t p = 2; p + 1 < last_point(); ++p) {
    uniform_ = uniform_ && problem.StageBytes(p, p + 1) == problem.StageBytes(1, 2);
  }
  for (const Linear& stage : seconds_.stages) uniform_ = uniform_ && even(stage.before);
  for (const PlanProblem::Candidate& c : problem.candidates()) {
    uniform_ = uniform_ && c.fetch_bytes.empty();
  }
  for (const Shared& shared : shared_) {
    for (const size_t c : shared.users) uniform_ = uniform_ && even(shared.takes[c].before);
  }
}

PathCosts StageModel::WithPrices(absl::Span<const double> prices, bool free) const {
  PathCosts costs = seconds_;
  if (free) {
    for (std::vector<double>* hops : {&costs.hops, &costs.in, &costs.back}) {
      for (double& hop : *hops) hop = hop == kNever ? kNever : 0;
    }
    for (Linear& stage : costs.stages) {
      stage.fixed = 0;
      std::fill(stage.before.begin(), stage.before.end(), 0.0);
    }
  }
  for (size_t i = 0; i < n_prices(); ++i) {
    if (prices[i] == 0) continue;
    const Shared& shared = Priced(i);
    const double price = prices[i] / shared.capacity;
    for (const size_t c : shared.users) {
      costs.stages[c].fixed += price * shared.takes[c].fixed;
      for (size_t p = 0; p < n_points_; ++p) {
        costs.stages[c].before[p] += price * shared.takes[c].before[p];
      }
    }
  }
  return costs;
}

double StageModel::Used(size_t i, const Pieces& pieces) const {
  const Shared& shared = Priced(i);
  double used = 0;
  for (const Piece& piece : pieces) {
    const Linear& takes = shared.takes[piece.candidate];
    if (!takes.before.empty()) used += takes.Of(piece.begin, piece.end);
  }
  return used / shared.capacity;
}

bool StageModel::Fits(const Pieces& pieces) const {
  for (size_t i = 0; i < shared_.size(); ++i) {
    if (Used(i, pieces) > 1) return false;
  }
  return true;
}

}  // namespace strata
