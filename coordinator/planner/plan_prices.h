// Prices for what devices share, such that paths that overdraw it are not worth it: Lagrangian
// relaxation (Held and Karp 1971, "The traveling-salesman problem and minimum spanning trees: Part
// II"). The cheapest path at any prices, less what all that is shared would cost, is a lower bound;
// good prices make it a high one. They are tuned on a few orders of the candidates, where a path is
// found in microseconds; they are prices for all orders. Internal to the planner; pure; any thread.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/planner/plan_stages.h"

namespace strata {

struct PriceOptions {
  bool free = false;          // hops and seconds are: a bound above 0 means that nothing fits
  double known = kNever;      // of a plan; the bound cannot be higher (not for `free`)
  std::vector<double> start;  // prices to begin with; empty: none, or the same for all if `free`
};

// For these orders (of all candidates, any may be skipped); [things priced].
std::vector<double> TunePrices(const StageModel& model,
                               absl::Span<const std::vector<size_t>> orders,
                               const PriceOptions& options);

}  // namespace strata
