#include "coordinator/plan_exact.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "coordinator/plan_labels.h"
#include "coordinator/plan_prices.h"
#include "coordinator/plan_stages.h"
#include "coordinator/plan_table.h"

namespace strata {
namespace {

// Sums in another order differ by rounding; what differs by less is equal.
constexpr double kRounding = 1e-9;
constexpr size_t kRoundsMax = 8;    // of prices
constexpr size_t kRepairRuns = 16;  // of one order
constexpr double kWorthIt = 0.1;    // of the gap, that another round of prices should close
constexpr double kNarrow = 1e-3;    // between bounds that halving stops at

enum class Answer { kYes, kNo, kUnknown };

class Exact {
 public:
  Exact(const PlanProblem& problem, const ExactOptions& options)
      : problem_(problem), work_left_(options.work_max), known_(options.known) {}

  Solution LeastSum() { return LeastSum(kNever, known_); }
  Solution LeastMaxThenSum();

 private:
  Limits LimitsOf(double seconds_max) const;
  // The cheaper of `best` and `pieces`, if these are whole and keep to the limits.
  void Consider(Aim aim, double seconds_max, const Pieces& pieces, Solution* best) const;
  void ConsiderSingles(Aim aim, double seconds_max, Solution* best) const;
  // The best in the same order that does not overdraw anything.
  void Repair(double seconds_max, const Pieces& pieces, Solution* best) const;
  SubsetTable* Table(const StageModel& model);

  // Of the plans with no part longer than that. `known` is one, or empty.
  Solution LeastSum(double seconds_max, const Pieces& known);
  void CloseGap(const StageModel& model, double seconds_max, Prices* prices, Solution* best);
  // Whether any plan has no part longer than that.
  Answer Possible(double seconds_max, Pieces* pieces);

  const PlanProblem& problem_;
  double work_left_;
  const Pieces known_;
  std::unique_ptr<SubsetTable> table_;
  std::vector<std::vector<size_t>> orders_;  // that were worth looking at
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

void Exact::Repair(double seconds_max, const Pieces& pieces, Solution* best) const {
  std::vector<size_t> order;
  for (const Piece& piece : pieces) order.push_back(piece.candidate);
  for (size_t c = 0; c < problem_.candidates().size(); ++c) {
    if (std::find(order.begin(), order.end(), c) == order.end()) order.push_back(c);
  }
  Limits limits = LimitsOf(seconds_max);
  const Solution repaired = SolveShared(
      problem_, Aim::kSum, limits, {.known = best->pieces, .runs_max = kRepairRuns},
      [&](Aim aim, const Limits& tried) { return SolveOrder(problem_, aim, tried, order); });
  Consider(Aim::kSum, seconds_max, repaired.pieces, best);
}

SubsetTable* Exact::Table(const StageModel& model) {
  if (table_ == nullptr) {
    table_ = std::make_unique<SubsetTable>(model.n(), model.n_nodes(), model.n_points());
  }
  return table_.get();
}

Solution Exact::LeastSum(double seconds_max, const Pieces& known) {
  Solution best;
  Consider(Aim::kSum, seconds_max, known, &best);
  ConsiderSingles(Aim::kSum, seconds_max, &best);
  const StageModel model(problem_, seconds_max);
  if (!best.found()) {
    Pieces pieces;
    const Answer answer = Possible(seconds_max, &pieces);
    Consider(Aim::kSum, seconds_max, pieces, &best);
    if (!best.found()) {
      best.is_exact = answer == Answer::kNo;
      best.gap = best.is_exact ? 0 : 1;
      return best;
    }
  }
  Prices prices(model, Table(model), {.known = best.cost});
  for (const std::vector<size_t>& order : orders_) prices.AddOrder(order);
  if (best.pieces.size() > 1) prices.AddOrderOf(best.pieces);
  for (size_t round = 0; round < kRoundsMax; ++round) {
    const double before = prices.bound();
    prices.Improve();
    if (prices.path().empty()) return best;
    Consider(Aim::kSum, seconds_max, prices.path(), &best);
    if (model.n_prices() > 0) Repair(seconds_max, prices.path(), &best);
    prices.set_known(best.cost);
    if (prices.bound() >= best.cost * (1 - kRounding)) return best;
    if (model.n_prices() == 0) break;
    const double gap = best.cost - prices.bound();
    const double hoped = std::max(prices.tuned() - prices.bound(), prices.bound() - before);
    if (round > 0 && hoped < kWorthIt * gap) break;
  }
  orders_ = prices.orders();
  prices.Settle();
  CloseGap(model, seconds_max, &prices, &best);
  return best;
}

// From the bound upwards: as long as there is nothing that costs less than a limit, little lies
// between.
void Exact::CloseGap(const StageModel& model, double seconds_max, Prices* prices, Solution* best) {
  const double bound = prices->bound();
  double proved = bound;
  for (const double share : {1.0 / 16, 1.0 / 4, 1.0}) {
    const double limit =
        std::min(bound + share * (best->cost - bound), best->cost * (1 - kRounding));
    const LabelResult result = FindCheapest({.model = &model,
                                             .costs = &model.seconds(),
                                             .priced = &prices->costs(),
                                             .table = Table(model),
                                             .prices = prices->total(),
                                             .cost_limit = limit,
                                             .work_max = work_left_});
    work_left_ -= result.work;
    Consider(Aim::kSum, seconds_max, result.pieces, best);
    if (!result.is_complete) {
      best->is_exact = false;
      best->gap = std::clamp(1 - proved / best->cost, 0.0, 1.0);
      return;
    }
    if (!result.pieces.empty()) return;
    proved = limit;
  }
}

Answer Exact::Possible(double seconds_max, Pieces* pieces) {
  Solution best;
  ConsiderSingles(Aim::kMax, seconds_max, &best);
  *pieces = best.pieces;
  if (best.found()) return Answer::kYes;
  const StageModel model(problem_, seconds_max);
  Prices prices(model, Table(model), {.free = true});
  for (const std::vector<size_t>& order : orders_) prices.AddOrder(order);
  for (size_t round = 0; round < kRoundsMax; ++round) {
    prices.Improve();
    *pieces = prices.path();
    if (pieces->empty() || prices.bound() > kRounding) return Answer::kNo;
    if (model.Fits(*pieces)) return Answer::kYes;
    Repair(seconds_max, *pieces, &best);
    *pieces = best.pieces;
    if (best.found()) return Answer::kYes;
    if (round > 0 && prices.tuned() <= kRounding) break;
  }
  orders_ = prices.orders();
  prices.Settle();
  const PathCosts free =
      model.WithPrices(std::vector<double>(model.n_prices(), 0.0), /*free=*/true);
  const LabelResult result = FindCheapest({.model = &model,
                                           .costs = &free,
                                           .priced = &prices.costs(),
                                           .table = Table(model),
                                           .prices = prices.total(),
                                           .cost_limit = kRounding,
                                           .any = true,
                                           .work_max = work_left_});
  work_left_ -= result.work;
  *pieces = result.pieces;
  if (!pieces->empty()) return Answer::kYes;
  return result.is_complete ? Answer::kNo : Answer::kUnknown;
}

Solution Exact::LeastMaxThenSum() {
  Solution best;
  Consider(Aim::kMax, kNever, known_, &best);
  ConsiderSingles(Aim::kMax, kNever, &best);
  // What is shared left aside: a bound, and often the answer.
  double bound = kNever;
  {
    const StageModel model(problem_, kNever);
    bound = Table(model)->Fill(Aim::kMax, model, model.seconds());
    const Pieces path = Table(model)->Path();
    Consider(Aim::kMax, kNever, path, &best);
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
  // The best known is often the best: then the first question is the last.
  bool halve = false;
  while (bound < best.cost * (1 - kRounding)) {
    const double below = best.cost * (1 - kRounding);
    const bool narrow = bound > best.cost * (1 - kNarrow);
    const double seconds_max = halve && !narrow ? (bound + best.cost) / 2 : below;
    Pieces pieces;
    const Answer answer = Possible(seconds_max, &pieces);
    if (answer == Answer::kNo) bound = seconds_max;
    if (answer == Answer::kYes) {
      const double before = best.cost;
      Consider(Aim::kMax, kNever, pieces, &best);
      if (!(best.cost < before)) break;
    }
    if (answer == Answer::kUnknown) {
      best.is_exact = false;
      best.gap = std::clamp(1 - bound / best.cost, 0.0, 1.0);
      break;
    }
    halve = answer == Answer::kYes;
  }
  const Solution shortest = LeastSum(best.cost * (1 + kRounding), best.pieces);
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
