#include "coordinator/planner/search/units.h"

#include <algorithm>

namespace strata {
namespace {

bool Share(const PlanProblem::Candidate& a, const PlanProblem::Candidate& b) {
  const auto same = [](int x, int y) { return x != kOwnPool && x == y; };
  return same(a.memory_pool, b.memory_pool) || same(a.bandwidth_pool, b.bandwidth_pool) ||
         same(a.cores_pool, b.cores_pool);
}

}  // namespace

Units::Units(const PlanProblem& problem, Aim aim, bool alone) : problem_(problem), aim_(aim) {
  const auto& candidates = problem.candidates();
  std::vector<size_t> by_speed;
  for (size_t c = 0; c < candidates.size(); ++c) {
    by_speed.push_back(c);
    latest_.push_back(problem.LatestEnds(c, {}));
  }
  std::stable_sort(by_speed.begin(), by_speed.end(), [&](size_t a, size_t b) {
    return candidates[a].seconds.back() < candidates[b].seconds.back();
  });
  std::vector<bool> is_taken(candidates.size());
  for (const size_t c : by_speed) {
    if (is_taken[c]) continue;
    is_taken[c] = true;
    size_t other = c;
    if (alone) {
      units_.push_back({c});
      continue;
    }
    for (const size_t d : by_speed) {
      if (is_taken[d] || !Share(candidates[c], candidates[d])) continue;
      if (other == c || candidates[d].memory_bytes > candidates[other].memory_bytes) other = d;
    }
    // The other devices that share could overdraw it: they are left out.
    for (const size_t d : by_speed) {
      if (Share(candidates[c], candidates[d]) || Share(candidates[other], candidates[d])) {
        is_taken[d] = true;
      }
    }
    units_.push_back({c});
    if (other != c) units_.back().push_back(other);
    has_pairs_ = has_pairs_ || other != c;
  }
  unit_of_.assign(candidates.size(), units_.size());
  for (size_t u = 0; u < units_.size(); ++u) {
    for (const size_t c : units_[u]) unit_of_[c] = u;
  }
  for (const PlanProblem::Candidate& c : candidates) {
    seconds_.push_back(c.seconds);
    seconds_.back().back() += c.head_s;
  }
}

double Units::PairCost(size_t first, size_t second, size_t begin, size_t cut, size_t end) const {
  const Piece a = {first, begin, cut}, b = {second, cut, end};
  const PlanProblem::Candidate& x = problem_.candidates()[first];
  const PlanProblem::Candidate& y = problem_.candidates()[second];
  if (x.memory_pool != kOwnPool && x.memory_pool == y.memory_pool &&
      problem_.StageBytes(begin, cut) + problem_.StageBytes(cut, end) >
          problem_.PoolBytes(x.memory_pool)) {
    return kNever;
  }
  const double a_s = problem_.StageSeconds(a), b_s = problem_.StageSeconds(b);
  double cost = Join(aim_, Join(aim_, a_s, b_s), problem_.Hop(first, second));
  if (aim_ == Aim::kMax) {
    if (x.bandwidth_pool != kOwnPool && x.bandwidth_pool == y.bandwidth_pool) {
      cost = std::max(cost, problem_.StageMemorySeconds(a) + problem_.StageMemorySeconds(b));
    }
    if (x.cores_pool != kOwnPool && x.cores_pool == y.cores_pool) cost = std::max(cost, a_s + b_s);
  }
  return cost;
}

const std::vector<double>& Units::PairCosts(size_t first, size_t second) {
  const auto [at, is_new] = pairs_.try_emplace({first, second});
  std::vector<double>& costs = at->second;
  if (!is_new) return costs;
  const size_t n = problem_.points().size();
  costs.assign(n * n, kNever);
  for (size_t begin = 0; begin + 1 < n; ++begin) {
    for (size_t cut = begin + 1; cut <= latest_[first][begin]; ++cut) {
      if (cut == problem_.last_point() || !problem_.SizeAllowed(begin, cut)) continue;
      for (size_t end = cut + 1; end <= latest_[second][cut]; ++end) {
        if (!problem_.SizeAllowed(cut, end)) continue;
        double* best = &costs[begin * n + end];
        *best = std::min(*best, PairCost(first, second, begin, cut, end));
      }
    }
  }
  return costs;
}

std::vector<Units::UnitPath> Units::PathsOf(size_t unit) {
  std::vector<UnitPath> paths;
  for (const size_t c : units_[unit]) paths.push_back({c, c, nullptr});
  if (units_[unit].size() == 2) {
    for (const size_t i : {size_t{0}, size_t{1}}) {
      const size_t first = units_[unit][i], second = units_[unit][1 - i];
      paths.push_back({first, second, &PairCosts(first, second)});
    }
  }
  return paths;
}

void Units::AddPath(const UnitPath& path, const std::vector<double>& before, double* after) const {
  const size_t n = problem_.points().size();
  for (size_t begin = 0; begin + 1 < n; ++begin) {
    if (before[begin] == kNever) continue;
    if (path.pair != nullptr) {
      const double* costs = &(*path.pair)[begin * n];
      for (size_t end = begin + 1; end < n; ++end) {
        const double cost = Join(aim_, before[begin], costs[end]);
        after[end] = cost < after[end] ? cost : after[end];
      }
      continue;
    }
    const std::vector<double>& seconds = seconds_[path.first];
    const double offset = problem_.candidates()[path.first].overhead_s - seconds[begin];
    for (const auto& [first, stop] : problem_.Runs(begin)) {
      const size_t last = std::min(stop - 1, latest_[path.first][begin]);
      for (size_t end = first; end <= last; ++end) {
        const double cost = Join(aim_, before[begin], offset + seconds[end]);
        after[end] = cost < after[end] ? cost : after[end];
      }
    }
  }
}

Solution Units::Solve(absl::Span<const size_t> order) {
  const size_t n = problem_.points().size();
  struct UnitVisit {
    size_t unit_at;
    UnitPath path;
    std::vector<double> before, after;  // [points]
  };
  std::vector<UnitVisit> visits;
  visits.reserve(order.size() * 4);
  Solution best;
  size_t best_at = 0;
  for (size_t at = 0; at < order.size(); ++at) {
    for (const UnitPath& path : PathsOf(order[at])) {
      UnitVisit next = {at, path, std::vector<double>(n, kNever), std::vector<double>(n, kNever)};
      next.before[0] = problem_.HopIn(path.first);
      for (const UnitVisit& each : visits) {
        if (each.unit_at == at) break;
        const double hop = problem_.Hop(each.path.last, path.first);
        if (hop == kNever) continue;
        for (size_t p = 1; p + 1 < n; ++p) {
          const double cost = Join(aim_, each.after[p], hop);
          next.before[p] = cost < next.before[p] ? cost : next.before[p];
        }
      }
      AddPath(path, next.before, next.after.data());
      const double cost = Join(aim_, next.after[n - 1], problem_.HopBack(path.last));
      if (cost < best.cost) {
        best.cost = cost;
        best_at = visits.size();
      }
      visits.push_back(std::move(next));
    }
  }
  if (best.cost == kNever) return best;
  for (size_t at = best_at, end = n - 1; end > 0;) {
    const UnitVisit& last = visits[at];
    size_t begin = end, cut = end;
    double least = kNever;
    for (size_t b = 0; b < end; ++b) {
      if (last.before[b] == kNever) continue;
      double cost = kNever;
      if (last.path.pair != nullptr) {
        cost = (*last.path.pair)[b * n + end];
      } else if (end <= latest_[last.path.first][b] && problem_.SizeAllowed(b, end)) {
        cost = problem_.StageSeconds({last.path.first, b, end});
      }
      cost = Join(aim_, last.before[b], cost);
      if (cost < least) {
        least = cost;
        begin = b;
      }
    }
    if (last.path.pair != nullptr) {
      least = kNever;
      for (size_t c = begin + 1; c < end && c <= latest_[last.path.first][begin]; ++c) {
        if (end > latest_[last.path.last][c] || !problem_.SizeAllowed(begin, c) ||
            !problem_.SizeAllowed(c, end)) {
          continue;
        }
        const double cost = PairCost(last.path.first, last.path.last, begin, c, end);
        if (cost < least) {
          least = cost;
          cut = c;
        }
      }
      best.pieces.push_back({last.path.last, cut, end});
      best.pieces.push_back({last.path.first, begin, cut});
    } else {
      best.pieces.push_back({last.path.first, begin, end});
    }
    end = begin;
    if (begin == 0) break;
    least = kNever;
    size_t previous = at;
    for (size_t i = 0; i < at && visits[i].unit_at < last.unit_at; ++i) {
      const double cost =
          Join(aim_, visits[i].after[begin], problem_.Hop(visits[i].path.last, last.path.first));
      if (cost < least) {
        least = cost;
        previous = i;
      }
    }
    at = previous;
  }
  std::reverse(best.pieces.begin(), best.pieces.end());
  return best;
}

}  // namespace strata
