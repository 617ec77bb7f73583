#include "coordinator/planner/exact/prices.h"

#include <algorithm>
#include <numeric>

#include "coordinator/planner/exact/table.h"

namespace strata {
namespace {

constexpr size_t kSteps = 120;
constexpr size_t kPricePatience = 8;  // steps without a better bound before they get smaller
constexpr double kScaleMin = 1e-3;
constexpr double kEnough = 1e-6;  // where anything above 0 is a proof

}  // namespace

std::vector<double> TunePrices(const StageModel& model,
                               absl::Span<const std::vector<size_t>> orders,
                               const PriceOptions& options) {
  const size_t n = model.n_prices();
  std::vector<double> now = options.start;
  if (now.empty()) now.assign(n, options.free && n > 0 ? 1 / static_cast<double>(n) : 0.0);
  std::vector<double> prices = now;
  double best = -kNever;
  double scale = 1;
  size_t idle = 0;
  for (size_t step = 0; step < kSteps; ++step) {
    const PathCosts costs = model.WithPrices(prices, options.free);
    double cheapest = kNever;
    Pieces path, pieces;
    for (const std::vector<size_t>& order : orders) {
      const double cost = CheapestInOrder(model, costs, order, &pieces);
      if (cost < cheapest) {
        cheapest = cost;
        path = pieces;
      }
    }
    if (path.empty()) break;
    const double bound = cheapest - std::accumulate(prices.begin(), prices.end(), 0.0);
    if (bound > best) {
      best = bound;
      now = prices;
      idle = 0;
    } else if (++idle == kPricePatience) {
      idle = 0;
      scale /= 2;
      prices = now;
      if (scale < kScaleMin) break;
    }
    if (options.free && best > kEnough) break;
    std::vector<double> over(n);
    double square = 0;
    for (size_t i = 0; i < n; ++i) {
      over[i] = model.Used(i, path) - 1;
      if (prices[i] == 0) over[i] = std::max(over[i], 0.0);
      square += over[i] * over[i];
    }
    if (square == 0) break;
    const double missing =
        options.free ? 0.02 + std::max(0.0, -bound) : std::max(0.0, options.known - bound);
    if (missing <= 0) break;
    for (size_t i = 0; i < n; ++i) {
      prices[i] = std::max(0.0, prices[i] + scale * missing * over[i] / square);
    }
    if (options.free) {
      const double sum = std::accumulate(prices.begin(), prices.end(), 0.0);
      if (sum <= 0) break;
      for (double& price : prices) price /= sum;
    }
  }
  return now;
}

}  // namespace strata
