#include "coordinator/planner/exact/exact.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "coordinator/planner/exact/labels.h"
#include "coordinator/planner/exact/prices.h"
#include "coordinator/planner/exact/stages.h"
#include "coordinator/planner/exact/table.h"

namespace strata {
namespace {

constexpr size_t kRoundsMax = 5;    // of prices, on all orders
constexpr size_t kRoundsSplit = 1;  // where groups may be visited again
constexpr size_t kSplitsMax = 32;   // sets of these groups
constexpr double kSplitWork = 1e7;  // of the labels, for one question
constexpr size_t kOrdersMax = 6;    // that prices are tuned on
constexpr size_t kRepairRuns = 16;  // of one order
constexpr double kNarrow = 1e-3;    // between bounds that halving stops at

enum class Answer { kYes, kNo, kUnknown };

class Exact {
 public:
  Exact(const PlanProblem& problem, const ExactOptions& options)
      : problem_(problem),
        work_left_(options.work_max),
        known_(options.known),
        table_(problem.candidates().size(), problem.points().size()) {
    if (!known_.empty()) AddOrderOf(known_);
  }

  Solution LeastSum() { return LeastSum(kNever, known_, /*prove=*/true); }
  Solution LeastMaxThenSum();

 private:
  Limits LimitsOf(double seconds_max) const;
  // Makes `pieces` the best if they are complete, within the limits, and cheaper than `best`.
  void Consider(Aim aim, double seconds_max, const Pieces& pieces, Solution* best) const;
  void ConsiderSingles(Aim aim, double seconds_max, Solution* best) const;
  // The best plan in the same order that exceeds no limit.
  void Repair(double seconds_max, const Pieces& pieces, Solution* best);
  void AddOrderOf(const Pieces& pieces);

  // The least sum of the plans with no part longer than `seconds_max`. `known` is one, or empty.
  // Without `prove`, plans that visit a machine again are not examined.
  Solution LeastSum(double seconds_max, const Pieces& known, bool prove);
  // Prices with a high bound, and the table filled with them.
  struct Bound {
    std::vector<double> prices;
    PathCosts priced;
    double alone = 0;  // prices of resources outside groups
    double cost = -kNever;
  };
  // Updates `best` with the plans that it finds; stops at a bound above its cost, or above 0 if
  // `free`. If `free`, the first plan suffices, too.
  Bound RaiseBound(const StageModel& model, const Groups& groups, bool free, double seconds_max,
                   Solution* best);
  // A plan with no part longer than `seconds_max` that visits each group once; empty: none found.
  Pieces OneVisitEach(double seconds_max);
  double WorkFor(size_t splits) const {  // of the labels
    return splits > 0 ? std::min(work_left_, kSplitWork) : work_left_;
  }
  // Whether any plan has no part longer than `seconds_max`.
  Answer Possible(double seconds_max, Pieces* pieces);

  const PlanProblem& problem_;
  double work_left_;
  const Pieces known_;
  PlanTable table_;
  std::vector<std::vector<size_t>> orders_;  // that were worth examining, the latest first
};

Limits Exact::LimitsOf(double seconds_max) const {
  Limits limits = NoLimits(problem_);
  for (Caps& caps : limits.caps) caps.seconds = seconds_max;
  limits.hop_s = limits.pool_s = seconds_max;
  return limits;
}

void Exact::Consider(Aim aim, double seconds_max, const Pieces& pieces, Solution* best) const {
  if (pieces.empty() || pieces.back().end != problem_.last_point()) return;
  const double cost = CostOf(problem_, aim, pieces);
  if (!(cost < best->cost) || CostOf(problem_, Aim::kMax, pieces) > seconds_max) return;
  if (!Keeps(problem_, LimitsOf(seconds_max), pieces)) return;
  best->cost = cost;
  best->pieces = pieces;
}

void Exact::ConsiderSingles(Aim aim, double seconds_max, Solution* best) const {
  for (size_t c = 0; c < problem_.candidates().size(); ++c) {
    Consider(aim, seconds_max, {{c, 0, problem_.last_point()}}, best);
  }
}

void Exact::AddOrderOf(const Pieces& pieces) {
  std::vector<size_t> order;
  for (const Piece& piece : pieces) order.push_back(piece.candidate);
  for (size_t c = 0; c < problem_.candidates().size(); ++c) {
    if (std::find(order.begin(), order.end(), c) == order.end()) order.push_back(c);
  }
  std::erase(orders_, order);
  orders_.insert(orders_.begin(), std::move(order));
  if (orders_.size() > kOrdersMax) orders_.pop_back();
}

void Exact::Repair(double seconds_max, const Pieces& pieces, Solution* best) {
  AddOrderOf(pieces);
  const Solution repaired = SolveShared(problem_, Aim::kSum, LimitsOf(seconds_max),
                                        {.known = best->pieces, .runs_max = kRepairRuns},
                                        [&](Aim aim, const Limits& tried) {
                                          return SolveOrder(problem_, aim, tried, orders_.front());
                                        });
  Consider(Aim::kSum, seconds_max, repaired.pieces, best);
}

Solution Exact::LeastSum(double seconds_max, const Pieces& known, bool prove) {
  Solution best;
  Consider(Aim::kSum, seconds_max, known, &best);
  ConsiderSingles(Aim::kSum, seconds_max, &best);
  const StageModel model(problem_, seconds_max);
  const Groups groups(model, model.seconds(), /*apart=*/false);
  table_.Start(model, groups, model.seconds());
  table_.Fill(Aim::kSum);
  const Pieces path = table_.Path();
  Consider(Aim::kSum, seconds_max, path, &best);
  if (model.shared().empty()) return best;
  if (!groups.all_exact && !path.empty()) Repair(seconds_max, path, &best);
  if (!best.found()) {
    Pieces pieces;
    const Answer answer = Possible(seconds_max, &pieces);
    Consider(Aim::kSum, seconds_max, pieces, &best);
    if (!best.found()) {
      best.is_exact = answer == Answer::kNo;
      best.gap = best.is_exact ? 0 : 1;
      return best;
    }
    table_.Start(model, groups, model.seconds());
  }
  AddOrderOf(best.pieces);
  if (!prove) {
    best.is_exact = false;
    return best;
  }
  const Bound lower = RaiseBound(model, groups, /*free=*/false, seconds_max, &best);
  const double bound = lower.cost;
  // From the bound upwards: while no plan is below a limit, few labels lie between.
  double proved = bound;
  const double work_max = WorkFor(groups.splits);
  for (const double share : {1.0 / 16, 1.0 / 4, 1.0}) {
    if (proved >= best.cost * (1 - kRounding)) return best;
    const double limit = std::min(bound + share * (best.cost - bound), best.cost * (1 - kRounding));
    const LabelResult result = FindCheapest({.model = &model,
                                             .groups = &groups,
                                             .costs = &model.seconds(),
                                             .priced = &lower.priced,
                                             .table = &table_,
                                             .prices = lower.alone,
                                             .cost_limit = limit,
                                             .work_max = std::min(work_left_, work_max)});
    work_left_ -= result.work;
    Consider(Aim::kSum, seconds_max, result.pieces, &best);
    if (!result.is_complete) {
      best.is_exact = false;
      best.gap = std::clamp(1 - proved / best.cost, 0.0, 1.0);
      return best;
    }
    if (!result.pieces.empty()) return best;
    proved = limit;
  }
  return best;
}

// Prices at which a layer costs the same everywhere: nothing fits when the layers do not.
std::vector<double> LayersFit(const StageModel& model) {
  std::vector<double> prices(model.n_prices(), 0.0);
  double sum = 0;
  for (size_t i = 0; i < model.counts().size(); ++i) {
    const Shared& count = model.counts()[i];
    // Only the resource that allows the fewest layers for the same candidates.
    const bool least =
        std::none_of(model.counts().begin(), model.counts().end(), [&](const Shared& other) {
          return other.users == count.users &&
                 (other.capacity < count.capacity ||
                  (other.capacity == count.capacity && &other < &count));
        });
    if (!least) continue;
    prices[model.shared().size() + i] = count.capacity;
    sum += count.capacity;
  }
  for (double& price : prices)
    price = sum > 0 ? price / sum : 1.0 / static_cast<double>(prices.size());
  return prices;
}

Exact::Bound Exact::RaiseBound(const StageModel& model, const Groups& groups, bool free,
                               double seconds_max, Solution* known) {
  const auto enough = [&] { return free ? kRounding : known->cost * (1 - kRounding); };
  PriceOptions options;
  options.free = free;
  options.known = enough();
  if (free) options.start = LayersFit(model);
  std::vector<double> prices = TunePrices(model, orders_, options);
  const size_t splits = groups.splits;
  const size_t rounds = splits == 0 ? kRoundsMax : splits <= kSplitsMax ? kRoundsSplit : 0;
  Bound best;
  double scale = 1;
  for (size_t round = 0;; ++round) {
    Bound now;
    now.prices = prices;
    now.priced = model.WithPrices(prices, free);
    now.alone = std::accumulate(prices.begin(), prices.end(), 0.0);
    for (const Group& group : groups.list) {
      for (const size_t i : group.priced) now.alone -= prices[i];
    }
    // The last round fills the table with the best prices.
    now.cost = table_.FillPriced(now.priced, prices) - now.alone;
    if (now.cost >= enough() || round == rounds) {
      best = std::move(now);
      break;
    }
    const std::vector<Visit> visits = table_.Visits();
    Pieces path;
    for (const Visit& visit : visits) {
      path.insert(path.end(), visit.pieces.begin(), visit.pieces.end());
    }
    Consider(Aim::kSum, seconds_max, path, known);
    if (!path.empty()) Repair(seconds_max, path, known);
    if (free && known->found()) return now;
    const bool is_best = now.cost > best.cost;
    if (is_best) {
      best = std::move(now);
    } else {
      scale /= 2;
    }
    std::vector<double> over(prices.size(), -1);
    for (const Group& group : groups.list) {
      for (const size_t i : group.priced) over[i] = 0;
    }
    std::vector<bool> opened(groups.list.size());
    for (const Visit& visit : visits) {
      const Group& group = groups.list[visit.group];
      if (group.members.size() > 1 && !visit.again) continue;
      for (size_t i = 0; i < prices.size(); ++i) over[i] += model.Used(i, visit.pieces);
      for (const size_t i : group.priced) over[i] -= opened[visit.group] ? 0 : 1;
      opened[visit.group] = true;
    }
    prices = best.prices;
    double square = 0;
    for (size_t i = 0; i < prices.size(); ++i) {
      if (prices[i] == 0) over[i] = std::max(over[i], 0.0);
      square += over[i] * over[i];
    }
    if (square == 0 || round + 1 == rounds) {
      if (is_best) break;
      round = rounds - 1;
      continue;
    }
    const double step = scale * (enough() + (free ? 0.01 : 0.0) - best.cost) / square;
    for (size_t i = 0; i < prices.size(); ++i) {
      prices[i] = std::max(0.0, prices[i] + step * over[i]);
    }
  }
  return best;
}

Pieces Exact::OneVisitEach(double seconds_max) {
  Solution single;
  ConsiderSingles(Aim::kMax, seconds_max, &single);
  if (single.found()) return single.pieces;
  const StageModel model(problem_, seconds_max);
  const PathCosts free =
      model.WithPrices(std::vector<double>(model.n_prices(), 0.0), /*free=*/true);
  const Groups groups(model, free, /*apart=*/false);
  table_.Start(model, groups, free);
  table_.Fill(Aim::kSum);
  const Pieces pieces = table_.Path();
  return model.Fits(pieces) ? pieces : Pieces();
}

Answer Exact::Possible(double seconds_max, Pieces* pieces) {
  Solution best;
  ConsiderSingles(Aim::kMax, seconds_max, &best);
  *pieces = best.pieces;
  if (best.found()) return Answer::kYes;
  const StageModel model(problem_, seconds_max);
  if (!model.MayHoldAll()) return Answer::kNo;
  const PathCosts free =
      model.WithPrices(std::vector<double>(model.n_prices(), 0.0), /*free=*/true);
  const Groups groups(model, free, /*apart=*/false);
  table_.Start(model, groups, free);
  table_.Fill(Aim::kSum);
  *pieces = table_.Path();
  if (!pieces->empty() && model.Fits(*pieces)) return Answer::kYes;
  if (model.shared().empty()) return Answer::kNo;
  if (!pieces->empty()) {
    Repair(seconds_max, *pieces, &best);
    *pieces = best.pieces;
    if (best.found()) return Answer::kYes;
  }
  if (groups.splits > kSplitsMax) return Answer::kUnknown;
  const Bound lower = RaiseBound(model, groups, /*free=*/true, seconds_max, &best);
  if (best.found()) {
    *pieces = best.pieces;
    return Answer::kYes;
  }
  if (lower.cost > kRounding) return Answer::kNo;
  const LabelResult result = FindCheapest({.model = &model,
                                           .groups = &groups,
                                           .costs = &free,
                                           .priced = &lower.priced,
                                           .table = &table_,
                                           .prices = lower.alone,
                                           .cost_limit = kRounding,
                                           .any = true,
                                           .work_max = WorkFor(groups.splits)});
  work_left_ -= result.work;
  *pieces = result.pieces;
  if (!pieces->empty()) return Answer::kYes;
  return result.is_complete ? Answer::kNo : Answer::kUnknown;
}

Solution Exact::LeastMaxThenSum() {
  Solution best;
  Consider(Aim::kMax, kNever, known_, &best);
  ConsiderSingles(Aim::kMax, kNever, &best);
  // Without shared resources: a bound, and often the answer.
  double bound = kNever;
  {
    const StageModel model(problem_, kNever);
    const Groups groups(model, model.seconds(), /*apart=*/true);
    table_.Start(model, groups, model.seconds());
    bound = table_.Fill(Aim::kMax);
    Consider(Aim::kMax, kNever, table_.Path(), &best);
    bound = std::min(bound, best.cost);
  }
  if (!best.found()) {
    Pieces pieces;
    const Answer answer = Possible(kNever, &pieces);
    Consider(Aim::kMax, kNever, pieces, &best);
    if (!best.found()) {
      best.is_exact = answer == Answer::kNo;
      best.gap = best.is_exact ? 0 : 1;
      return best;
    }
  }
  for (double high = best.cost; high - bound > kNarrow * high;) {
    const double middle = (bound + high) / 2;
    (StageModel(problem_, middle).MayHoldAll() ? high : bound) = middle;
  }
  // One visit to each group first: quick, and seldom beaten. The best known is often the best.
  bool halve = false;
  for (double low = bound; low < best.cost * (1 - kRounding);) {
    const bool narrow = low > best.cost * (1 - kNarrow);
    const double seconds_max =
        halve && !narrow ? (low + best.cost) / 2 : best.cost * (1 - kRounding);
    const double before = best.cost;
    Consider(Aim::kMax, kNever, OneVisitEach(seconds_max), &best);
    halve = best.cost < before;
    if (!halve) low = seconds_max;
  }
  Answer answer = Answer::kYes;
  while (answer == Answer::kYes && bound < best.cost * (1 - kRounding)) {
    const double before = best.cost;
    Pieces pieces;
    answer = Possible(before * (1 - kRounding), &pieces);
    if (answer != Answer::kYes) break;
    Consider(Aim::kMax, kNever, pieces, &best);
    if (!(best.cost < before)) answer = Answer::kUnknown;
  }
  if (answer == Answer::kUnknown) {
    best.is_exact = false;
    best.gap = std::clamp(1 - bound / best.cost, 0.0, 1.0);
  }
  const Solution shortest = LeastSum(best.cost * (1 + kRounding), best.pieces, best.is_exact);
  best.pieces = shortest.pieces;
  best.is_exact = best.is_exact && shortest.is_exact;
  return best;
}

}  // namespace

Solution SolveExact(const PlanProblem& problem, const ExactOptions& options) {
  if (problem.candidates().empty()) return {};
  Exact exact(problem, options);
  return problem.request().objective == Objective::kLatency ? exact.LeastSum()
                                                            : exact.LeastMaxThenSum();
}

}  // namespace strata
