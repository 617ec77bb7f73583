#include "coordinator/planner/search/search.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "coordinator/planner/search/anneal.h"
#include "coordinator/planner/search/units.h"

namespace strata {
namespace {

constexpr size_t kAnnealDevicesMax = 64;  // with more, the orders around the plan take seconds
// Devices, if there are so many. The least sum takes few stages; the slowest part is less with
// every further stage.
constexpr size_t kShortlistMinForSum = 24, kShortlistMinForMax = 64;
constexpr size_t kShortlistMore = 16;  // besides those that the model needs at least
constexpr size_t kShortlistMax = 160;
constexpr size_t kSeedsMax = 4;       // nodes around which shortlists are made
constexpr size_t kRebalancedMax = 4;  // starts that the local search goes on from
// Runs of SolveShared for one order: more where they are cheap.
constexpr double kSharedWorkMax = 1e6;
constexpr double kSharedRunsMin = 16, kSharedRunsMax = 400;
constexpr size_t kSearchPatience = 2;  // times the shortlist's size squared, without improvement
constexpr size_t kKicksMax = 3;        // restarts from random orders when patience is exhausted

constexpr double kWorkOfDevice = 1e7;  // at most; few devices have few orders

using Order = std::vector<size_t>;  // of units

class Search {
 public:
  // `known`: a plan to start from, or empty.
  Search(const PlanProblem& problem, double work_max, bool alone, Pieces known)
      : problem_(problem),
        aim_(AimOf(problem.request().objective)),
        none_(NoLimits(problem)),
        work_max_(work_max),
        alone_(alone),
        known_(std::move(known)),
        units_(problem, aim_, alone) {}

  Solution Run();
  bool has_pairs() const { return units_.has_pairs(); }

 private:
  struct Start {
    Order order;
    Solution solution;
  };

  double WorkOf(const Order& order) const {  // of an order
    double n = 0;
    for (const size_t unit : order) n += units_.members(unit).size() == 2 ? 4 : 1;
    const auto points = static_cast<double>(problem_.points().size());
    return n * points * (n + points) / 2;
  }
  static size_t SharedRuns(double work) {
    return static_cast<size_t>(std::clamp(kSharedWorkMax / work, kSharedRunsMin, kSharedRunsMax));
  }
  Solution Evaluate(const Order& order);
  // The order's devices, those of a unit in the order of `pieces`, and behind them the devices that
  // are in no unit.
  Order Candidates(const Order& order, const Pieces& pieces = {}) const;
  Solution EvaluateAlone(const Order& candidates, double work);
  // Seconds for a layer when the device is full, the hop to it from `node` included.
  double Score(size_t unit, size_t node) const;
  double ScoreOf(size_t candidate, size_t node) const;
  // About the last point that the order's devices reach from there.
  size_t Reach(size_t unit, size_t begin) const;
  Order Shortlist(size_t node) const;
  Order Chain(const Order& shortlist) const;
  // The units of these pieces in their order, each followed by those that share with it, and then
  // the others.
  Order Around(const Pieces& pieces, const Order& others) const;
  void Rebalance(Start* start, double work_max);
  std::vector<size_t> Seeds() const;

  const PlanProblem& problem_;
  const Aim aim_;
  const Limits none_;
  const double work_max_;
  const bool alone_;
  const Pieces known_;
  Units units_;
  double work_ = 0;
};

Order Search::Candidates(const Order& order, const Pieces& pieces) const {
  Order candidates;
  for (const size_t unit : order) {
    for (const Piece& piece : pieces) {
      if (units_.unit_of(piece.candidate) == unit) candidates.push_back(piece.candidate);
    }
    for (const size_t c : units_.members(unit)) {
      if (std::find(candidates.begin(), candidates.end(), c) == candidates.end()) {
        candidates.push_back(c);
      }
    }
  }
  for (size_t c = 0; c < problem_.candidates().size(); ++c) {
    if (candidates.size() < kShortlistMax && units_.unit_of(c) == units_.size()) {
      candidates.push_back(c);
    }
  }
  return candidates;
}

Solution Search::Evaluate(const Order& order) {
  const double work = WorkOf(order);
  if (!units_.has_pairs()) return EvaluateAlone(Candidates(order), work);
  work_ += work;
  return units_.Solve(order);
}

Solution Search::EvaluateAlone(const Order& candidates, double work) {
  const auto relaxed = [&](Aim aim, const Limits& limits) {
    work_ += work;
    return SolveOrder(problem_, aim, limits, candidates);
  };
  return SolveShared(problem_, aim_, none_, {.known = {}, .runs_max = SharedRuns(work)}, relaxed);
}

double Search::Score(size_t unit, size_t node) const {
  double score = kNever;
  for (const size_t c : units_.members(unit)) score = std::min(score, ScoreOf(c, node));
  return score;
}

size_t Search::Reach(size_t unit, size_t begin) const {
  size_t reached = begin;
  uint64_t taken = 0;
  for (const size_t c : units_.members(unit)) {
    const int pool = problem_.candidates()[c].memory_pool;
    Caps caps;
    if (pool != kOwnPool) {
      const uint64_t free = problem_.PoolBytes(pool);
      caps.memory_bytes = free > taken ? free - taken : 0;
    }
    const size_t end = problem_.LatestEnds(c, caps)[reached];
    if (end > reached) taken += problem_.StageBytes(reached, end);
    reached = end;
  }
  return reached;
}

double Search::ScoreOf(size_t candidate, size_t node) const {
  const PlanProblem::Candidate& c = problem_.candidates()[candidate];
  const std::vector<size_t> ends = problem_.LatestEnds(candidate, {});
  size_t most = 0;
  for (size_t begin = 0; begin < ends.size(); ++begin) most = std::max(most, ends[begin] - begin);
  if (most == 0) return kNever;
  const PlanRequest& request = problem_.request();
  const wire::ActivationType type = request.SentAs(node, c.node, problem_.step().rows);
  const double hop = c.node == node
                         ? request.local_hop_s
                         : HopSeconds(request.Link(node, c.node),
                                      ActivationBytes(*request.costs, problem_.step(), type));
  const double all_s = c.seconds.back();
  const double n = static_cast<double>(problem_.last_point());
  return all_s / n + (c.overhead_s + hop) / static_cast<double>(most);
}

Order Search::Shortlist(size_t node) const {
  std::vector<std::pair<double, size_t>> scored;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    scored.emplace_back(Score(unit, node), unit);
  }
  std::sort(scored.begin(), scored.end());
  Order order;
  size_t covered = 0, enough = kShortlistMax;
  for (const auto& [score, unit] : scored) {
    if (order.size() >= enough || order.size() >= kShortlistMax) break;
    order.push_back(unit);
    if (covered >= problem_.last_point()) continue;
    covered = std::max(covered, Reach(unit, covered));
    if (covered >= problem_.last_point()) {
      enough = std::max(aim_ == Aim::kSum ? kShortlistMinForSum : kShortlistMinForMax,
                        order.size() + kShortlistMore);
    }
  }
  return order;
}

// A greedy order: from the coordinator always to the nearest.
Order Search::Chain(const Order& shortlist) const {
  Order left = shortlist, chain;
  while (!left.empty()) {
    const auto hop_to = [&](size_t unit) {
      const size_t to = units_.members(unit).front();
      return chain.empty() ? problem_.HopIn(to)
                           : problem_.Hop(units_.members(chain.back()).front(), to);
    };
    const auto nearer = [&](size_t a, size_t b) { return hop_to(a) < hop_to(b); };
    const auto next = std::min_element(left.begin(), left.end(), nearer);
    chain.push_back(*next);
    left.erase(next);
  }
  return chain;
}

Order Search::Around(const Pieces& pieces, const Order& others) const {
  Order order;
  const auto add = [&](size_t unit) {
    if (unit < units_.size() && std::find(order.begin(), order.end(), unit) == order.end()) {
      order.push_back(unit);
    }
  };
  const auto& candidates = problem_.candidates();
  for (size_t i = 0; i < pieces.size(); ++i) {
    add(units_.unit_of(pieces[i].candidate));
    const int pool = candidates[pieces[i].candidate].memory_pool;
    const bool goes_on =
        i + 1 < pieces.size() && candidates[pieces[i + 1].candidate].memory_pool == pool;
    for (size_t c = 0; c < candidates.size() && pool != kOwnPool && !goes_on; ++c) {
      const bool is_used = std::any_of(pieces.begin(), pieces.end(),
                                       [&](const Piece& piece) { return piece.candidate == c; });
      if (candidates[c].memory_pool == pool && !is_used) add(units_.unit_of(c));
    }
  }
  for (const size_t unit : others) {
    if (order.size() < kShortlistMax) add(unit);
  }
  return order;
}

// Makes a neighbour of `order`: one device moved, two exchanged, or a part reversed.
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

void Search::Rebalance(Start* start, double work_max) {
  const size_t n = start->order.size();
  if (n < 2) return;
  std::mt19937 random(static_cast<uint32_t>(n));
  const auto draw = [&](size_t below) { return static_cast<size_t>(random() % below); };
  const double until = work_ + work_max;
  const size_t patience = kSearchPatience * n * n + 30;
  Start now = *start;
  for (size_t idle = 0, kicks = 0; work_ < until; ++idle) {
    if (idle == patience) {
      if (++kicks > kKicksMax) break;
      idle = 0;
      // A distant restart: the devices in use, anywhere among the others.
      for (size_t i = n; i-- > 1;) std::swap(now.order[i], now.order[draw(i + 1)]);
      now.solution = Evaluate(now.order);
    }
    Order order = now.order;
    const Pieces& pieces = now.solution.pieces;
    // Mostly a device in use is moved.
    size_t a = draw(n);
    if (!pieces.empty() && draw(4) != 0) {
      const size_t used = units_.unit_of(pieces[draw(pieces.size())].candidate);
      const auto at = std::find(order.begin(), order.end(), used);
      if (at != order.end()) a = static_cast<size_t>(at - order.begin());
    }
    const size_t b = draw(n);
    if (a == b) continue;
    Move(&order, a, b, draw(4));
    Solution solution = Evaluate(order);
    if (solution.cost < now.solution.cost) idle = 0;
    // An equally good order is accepted, too: drift.
    if (solution.cost <= now.solution.cost) now = {std::move(order), std::move(solution)};
    if (now.solution.cost < start->solution.cost) *start = now;
  }
}

std::vector<size_t> Search::Seeds() const {
  std::vector<size_t> nodes = {problem_.request().coordinator_node};
  std::vector<std::pair<double, size_t>> scored;
  for (size_t c = 0; c < problem_.candidates().size(); ++c) {
    const size_t node = problem_.candidates()[c].node;
    scored.emplace_back(ScoreOf(c, node), node);
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
  if (!known_.empty()) starts.push_back({Around(known_, starts.front().order), {}});
  for (Start& start : starts) start.solution = Evaluate(start.order);
  if (!known_.empty()) {
    Solution* known = &starts.back().solution;
    const double cost = CostOf(problem_, aim_, known_);
    if (cost < known->cost) *known = {.cost = cost, .pieces = known_};
  }
  if (std::none_of(starts.begin(), starts.end(),
                   [](const Start& s) { return s.solution.found(); })) {
    // The model may need all devices, the largest first.
    Order order(units_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto bytes = [&](size_t unit) {
      uint64_t most = 0;
      for (const size_t c : units_.members(unit)) {
        most = std::max(most, problem_.candidates()[c].memory_bytes);
      }
      return most;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return bytes(a) > bytes(b); });
    starts.push_back({order, Evaluate(order)});
    if (!starts.back().solution.found() && units_.has_pairs()) {
      starts.back().solution = EvaluateAlone(Candidates(order), WorkOf(order));
    }
    if (starts.back().solution.found() && order.size() > kShortlistMax) {
      std::set<size_t> used;
      for (const Piece& piece : starts.back().solution.pieces) {
        used.insert(units_.unit_of(piece.candidate));
      }
      std::erase_if(starts.back().order, [&](size_t unit) { return used.count(unit) == 0; });
    }
  }
  std::stable_sort(starts.begin(), starts.end(), [](const Start& a, const Start& b) {
    return a.solution.cost < b.solution.cost;
  });
  starts.resize(std::min(starts.size(), kRebalancedMax));
  const double work_each = work_max_ / static_cast<double>(starts.size() + 1);
  for (Start& start : starts) Rebalance(&start, work_each);
  Start& best = *std::min_element(starts.begin(), starts.end(), [](const Start& a, const Start& b) {
    return a.solution.cost < b.solution.cost;
  });
  const bool may_anneal = problem_.candidates().size() <= kAnnealDevicesMax;
  if (alone_ && may_anneal && best.solution.found()) {
    best.solution.pieces =
        Anneal(problem_, {.aim = aim_, .work_max = work_each}, best.solution.pieces);
    best.order = Around(best.solution.pieces, best.order);
  }
  const Order candidates = Candidates(best.order, best.solution.pieces);
  Solution solution = SolveObjective(
      problem_, {.known = best.solution.pieces, .runs_max = SharedRuns(WorkOf(best.order))},
      [&](Aim aim, const Limits& limits) { return SolveOrder(problem_, aim, limits, candidates); });
  if (alone_ && aim_ == Aim::kMax && may_anneal && solution.found()) {
    // The order was searched for the least maximum only.
    const double slowest_s = CostOf(problem_, Aim::kMax, solution.pieces) * (1 + kRounding);
    solution.pieces =
        Anneal(problem_, {.aim = Aim::kSum, .seconds_max = slowest_s, .work_max = work_each},
               solution.pieces);
    solution.cost = CostOf(problem_, Aim::kSum, solution.pieces);
  }
  return solution;
}

}  // namespace

Solution SearchPlan(const PlanProblem& problem, double work_max) {
  if (problem.candidates().empty()) return {};
  work_max = std::min(work_max, kWorkOfDevice * static_cast<double>(problem.candidates().size()));
  Search units(problem, work_max / 2, /*alone=*/false, {});
  if (!units.has_pairs()) return Search(problem, work_max, /*alone=*/true, {}).Run();
  const Solution paired = units.Run();
  return Search(problem, work_max / 2, /*alone=*/true, paired.pieces).Run();
}

}  // namespace strata
