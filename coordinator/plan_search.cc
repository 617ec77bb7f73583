#include "coordinator/plan_search.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <utility>

namespace strata {
namespace {

constexpr size_t kShortlistMin = 24;   // devices, if there are so many
constexpr size_t kShortlistMore = 16;  // besides those that the model needs at least
constexpr size_t kShortlistMax = 160;
constexpr size_t kSeedsMax = 4;     // nodes around which shortlists are made
constexpr size_t kImprovedMax = 4;  // starts that the local search goes on from
// Of SolveShared for one order: more where they are cheap.
constexpr double kSharedWorkMax = 1e6;
constexpr double kSharedRunsMin = 16, kSharedRunsMax = 400;
constexpr size_t kPatience = 2;  // times the square of the shortlist, without a better order
constexpr size_t kKicksMax = 3;  // random orders to go on from when patience is at its end

using Order = std::vector<size_t>;

class Search {
 public:
  Search(const PlanProblem& problem, double work_max)
      : problem_(problem),
        aim_(problem.request().objective == Objective::kLatency ? Aim::kSum : Aim::kMax),
        none_(NoLimits(problem)),
        work_max_(work_max) {}

  Solution Run();

 private:
  struct Start {
    Order order;
    Solution solution;
  };

  double WorkOf(const Order& order) const {  // of SolveOrder
    const auto n = static_cast<double>(order.size());
    const auto points = static_cast<double>(problem_.points().size());
    return n * points * (n + points) / 2;
  }
  size_t SharedRuns(const Order& order) const {
    return static_cast<size_t>(
        std::clamp(kSharedWorkMax / WorkOf(order), kSharedRunsMin, kSharedRunsMax));
  }
  Solution Evaluate(const Order& order);
  // Seconds for a layer at the device's fullest, the hop to it from `node` included.
  double Score(size_t candidate, size_t node) const;
  Order Shortlist(size_t node) const;
  Order Chain(const Order& shortlist) const;
  void Improve(Start* start, double work_max);
  std::vector<size_t> Seeds() const;

  const PlanProblem& problem_;
  const Aim aim_;
  const Limits none_;
  const double work_max_;
  double work_ = 0;
};

Solution Search::Evaluate(const Order& order) {
  const double work = WorkOf(order);
  const auto relaxed = [&](Aim aim, const Limits& limits) {
    work_ += work;
    return SolveOrder(problem_, aim, limits, order);
  };
  return SolveShared(problem_, aim_, none_, {.runs_max = SharedRuns(order)}, relaxed);
}

double Search::Score(size_t candidate, size_t node) const {
  const PlanProblem::Candidate& c = problem_.candidates()[candidate];
  const std::vector<size_t> ends = problem_.LatestEnds(candidate, {});
  size_t most = 0;
  for (size_t begin = 0; begin < ends.size(); ++begin) most = std::max(most, ends[begin] - begin);
  if (most == 0) return kNever;
  const PlanRequest& request = problem_.request();
  const double hop = c.node == node ? request.local_hop_s
                                    : HopSeconds(request.Link(node, c.node),
                                                 ActivationBytes(*request.costs, problem_.step()));
  const double all_s = c.seconds.back();
  const double n = static_cast<double>(problem_.last_point());
  return all_s / n + (c.overhead_s + hop) / static_cast<double>(most);
}

Order Search::Shortlist(size_t node) const {
  const size_t n = problem_.candidates().size();
  std::vector<std::pair<double, size_t>> scored;
  for (size_t c = 0; c < n; ++c) scored.emplace_back(Score(c, node), c);
  std::sort(scored.begin(), scored.end());
  Order order;
  size_t covered = 0, enough = kShortlistMax;
  for (const auto& [score, c] : scored) {
    if (order.size() >= enough || order.size() >= kShortlistMax) break;
    order.push_back(c);
    if (covered >= problem_.last_point()) continue;
    covered = std::max(covered, problem_.LatestEnds(c, {})[covered]);
    if (covered >= problem_.last_point()) {
      enough = std::max(kShortlistMin, order.size() + kShortlistMore);
    }
  }
  return order;
}

// From the coordinator always to the nearest.
Order Search::Chain(const Order& shortlist) const {
  Order left = shortlist, chain;
  while (!left.empty()) {
    const auto nearer = [&](size_t a, size_t b) {
      const double hop_a = chain.empty() ? problem_.HopIn(a) : problem_.Hop(chain.back(), a);
      const double hop_b = chain.empty() ? problem_.HopIn(b) : problem_.Hop(chain.back(), b);
      return hop_a < hop_b;
    };
    const auto next = std::min_element(left.begin(), left.end(), nearer);
    chain.push_back(*next);
    left.erase(next);
  }
  return chain;
}

// A neighbour of `order`: one device elsewhere, two exchanged, or a part turned round.
void Move(Order* order, size_t a, size_t b, size_t kind) {
  const auto at = [&](size_t i) { return order->begin() + static_cast<std::ptrdiff_t>(i); };
  switch (kind) {
    case 0:
      std::swap((*order)[a], (*order)[b]);
      break;
    case 1:
      std::reverse(at(std::min(a, b)), at(std::max(a, b)) + 1);
      break;
    default:
      if (a < b) {
        std::rotate(at(a), at(a) + 1, at(b) + 1);
      } else {
        std::rotate(at(b), at(a), at(a) + 1);
      }
      break;
  }
}

void Search::Improve(Start* start, double work_max) {
  const size_t n = start->order.size();
  if (n < 2) return;
  std::mt19937 random(static_cast<uint32_t>(n));
  const auto draw = [&](size_t below) { return static_cast<size_t>(random() % below); };
  const double until = work_ + work_max;
  const size_t patience = kPatience * n * n + 30;
  Start now = *start;
  for (size_t idle = 0, kicks = 0; work_ < until; ++idle) {
    if (idle == patience) {
      if (++kicks > kKicksMax) break;
      idle = 0;
      // Far away: what is in use among the others, anywhere.
      for (size_t i = n; i-- > 1;) std::swap(now.order[i], now.order[draw(i + 1)]);
      now.solution = Evaluate(now.order);
    }
    Order order = now.order;
    const Pieces& pieces = now.solution.pieces;
    // Mostly something that is in use moves.
    size_t a = draw(n);
    if (!pieces.empty() && draw(4) != 0) {
      const size_t used = pieces[draw(pieces.size())].candidate;
      a = static_cast<size_t>(std::find(order.begin(), order.end(), used) - order.begin());
    }
    const size_t b = draw(n);
    if (a == b) continue;
    Move(&order, a, b, draw(4));
    Solution solution = Evaluate(order);
    if (solution.cost < now.solution.cost) idle = 0;
    // As good will do: drift.
    if (solution.cost <= now.solution.cost) now = {std::move(order), std::move(solution)};
    if (now.solution.cost < start->solution.cost) *start = now;
  }
}

std::vector<size_t> Search::Seeds() const {
  std::vector<size_t> nodes = {problem_.request().coordinator_node};
  std::vector<std::pair<double, size_t>> scored;
  for (size_t c = 0; c < problem_.candidates().size(); ++c) {
    const size_t node = problem_.candidates()[c].node;
    scored.emplace_back(Score(c, node), node);
  }
  std::sort(scored.begin(), scored.end());
  for (const auto& [score, node] : scored) {
    if (nodes.size() > kSeedsMax) break;
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
  }
  return nodes;
}

Solution Search::Run() {
  std::vector<Start> starts;
  for (const size_t node : Seeds()) {
    const Order shortlist = Shortlist(node);
    starts.push_back({shortlist, {}});
    starts.push_back({Chain(shortlist), {}});
  }
  for (Start& start : starts) start.solution = Evaluate(start.order);
  if (std::none_of(starts.begin(), starts.end(),
                   [](const Start& s) { return s.solution.found(); })) {
    // Perhaps it takes all there are, the largest first.
    Order order(problem_.candidates().size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return problem_.candidates()[a].memory_bytes > problem_.candidates()[b].memory_bytes;
    });
    starts.push_back({order, Evaluate(order)});
    if (starts.back().solution.found() && order.size() > kShortlistMax) {
      std::set<size_t> used;
      for (const Piece& piece : starts.back().solution.pieces) used.insert(piece.candidate);
      std::erase_if(starts.back().order, [&](size_t c) { return used.count(c) == 0; });
    }
  }
  std::stable_sort(starts.begin(), starts.end(), [](const Start& a, const Start& b) {
    return a.solution.cost < b.solution.cost;
  });
  starts.resize(std::min(starts.size(), kImprovedMax));
  for (Start& start : starts) Improve(&start, work_max_ / static_cast<double>(starts.size()));
  const Start& best = *std::min_element(
      starts.begin(), starts.end(),
      [](const Start& a, const Start& b) { return a.solution.cost < b.solution.cost; });
  Solution solution = SolveObjective(
      problem_, {.known = best.solution.pieces, .runs_max = SharedRuns(best.order)},
      [&](Aim aim, const Limits& limits) { return SolveOrder(problem_, aim, limits, best.order); });
  solution.is_exact = false;
  solution.gap = 1;
  return solution;
}

}  // namespace

Solution SearchPlan(const PlanProblem& problem, double work_max) {
  if (problem.candidates().empty()) return {};
  return Search(problem, work_max).Run();
}

}  // namespace strata
