#include "coordinator/plan_prices.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace strata {
namespace {

constexpr size_t kOrdersMax = 8;
constexpr size_t kTuneSteps = 120;
constexpr size_t kTunePatience = 8;  // steps without a better bound before they get smaller

}  // namespace

Prices::Prices(const StageModel& model, SubsetTable* table, const PriceOptions& options)
    : model_(model), table_(table), options_(options) {
  const size_t n = model.n_prices();
  now_.assign(n, options.free && n > 0 ? 1 / static_cast<double>(n) : 0.0);
  best_ = now_;
}

void Prices::AddOrder(const std::vector<size_t>& order) {
  if (std::find(orders_.begin(), orders_.end(), order) != orders_.end()) return;
  if (orders_.size() == kOrdersMax) orders_.erase(orders_.begin());
  orders_.push_back(order);
}

void Prices::AddOrderOf(const Pieces& pieces) {
  std::vector<size_t> order;
  for (const Piece& piece : pieces) order.push_back(piece.candidate);
  for (size_t c = 0; c < model_.n(); ++c) {
    if (std::find(order.begin(), order.end(), c) == order.end()) order.push_back(c);
  }
  AddOrder(order);
}

// Subgradient steps towards the prices with the best bound for the known orders.
double Prices::Tune() {
  const size_t n = now_.size();
  std::vector<double> prices = now_;
  double best = -kNever;
  double scale = 1;
  size_t idle = 0;
  for (size_t step = 0; step < kTuneSteps; ++step) {
    const PathCosts costs = model_.WithPrices(prices, options_.free);
    double cheapest = kNever;
    Pieces path, pieces;
    for (const std::vector<size_t>& order : orders_) {
      const double cost = CheapestInOrder(model_, costs, order, &pieces);
      if (cost < cheapest) {
        cheapest = cost;
        path = pieces;
      }
    }
    if (path.empty()) return kNever;
    const double bound = cheapest - std::accumulate(prices.begin(), prices.end(), 0.0);
    if (bound > best) {
      best = bound;
      now_ = prices;
      idle = 0;
    } else if (++idle == kTunePatience) {
      idle = 0;
      scale /= 2;
      prices = now_;
      if (scale < 1e-3) break;
    }
    if (options_.free && best > 1e-6) break;
    std::vector<double> over(n);
    double square = 0;
    for (size_t i = 0; i < n; ++i) {
      over[i] = model_.Used(i, path) - 1;
      if (prices[i] == 0) over[i] = std::max(over[i], 0.0);
      square += over[i] * over[i];
    }
    if (square == 0) break;
    const double missing =
        options_.free ? 0.02 + std::max(0.0, -bound) : std::max(0.0, options_.known - bound);
    if (missing <= 0) break;
    for (size_t i = 0; i < n; ++i) {
      prices[i] = std::max(0.0, prices[i] + scale * missing * over[i] / square);
    }
    if (options_.free) {
      const double sum = std::accumulate(prices.begin(), prices.end(), 0.0);
      if (sum <= 0) break;
      for (double& price : prices) price /= sum;
    }
  }
  return best;
}

double Prices::Fill(const std::vector<double>& prices) {
  costs_ = model_.WithPrices(prices, options_.free);
  filled_ = prices;
  return table_->Fill(Aim::kSum, model_, costs_) - total();
}

double Prices::total() const { return std::accumulate(filled_.begin(), filled_.end(), 0.0); }

void Prices::Improve() {
  if (!now_.empty() && !orders_.empty()) tuned_ = Tune();
  const double bound = Fill(now_);
  path_ = table_->Path();
  if (bound > bound_) {
    bound_ = bound;
    best_ = now_;
  }
  if (!path_.empty()) AddOrderOf(path_);
}

void Prices::Settle() {
  if (filled_ != best_) Fill(best_);
  now_ = best_;
}

}  // namespace strata
