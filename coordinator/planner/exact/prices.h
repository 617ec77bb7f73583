// Prices for shared resources, such that paths that exceed their limits do not pay: Lagrangian
// relaxation (Held and Karp 1971, "The traveling-salesman problem and minimum spanning trees: Part
// II"). The cheapest path at any prices, less the price of all capacities, is a lower bound; good
// prices make it a high one. They are tuned on a few orders of the candidates, where a path is
// found in microseconds, and are valid for all orders. Internal to the planner; pure; any thread.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/planner/exact/stages.h"

namespace strata {

struct PriceOptions {
  bool free = false;      // no cost for hops and seconds: a bound above 0 proves that nothing fits
  double known = kNever;  // of a plan; the bound cannot be higher (not for `free`)
  std::vector<double> start;  // initial prices; empty: 0, or equal ones if `free`
};

// Tuned for these orders (of all candidates, any may be skipped); [priced resources].
std::vector<double> TunePrices(const StageModel& model,
                               absl::Span<const std::vector<size_t>> orders,
                               const PriceOptions& options);

}  // namespace strata
