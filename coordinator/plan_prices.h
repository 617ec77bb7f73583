// Prices for what devices share, such that paths that overdraw it are not worth it: Lagrangian
// relaxation (Held and Karp 1971, "The traveling-salesman problem and minimum spanning trees: Part
// II"). The cheapest path at any prices, less what all that is shared would cost, is a lower bound;
// good prices make it a high one. Prices are tuned on a few orders of the candidates, where a path
// is found in microseconds, and proved on all of them with a SubsetTable. Internal to the planner;
// not thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include "coordinator/plan_stages.h"
#include "coordinator/plan_table.h"

namespace strata {

struct PriceOptions {
  bool free = false;      // hops and seconds are: a bound above 0 proves that nothing fits
  double known = kNever;  // of a plan; the bound cannot be higher (not for `free`)
};

class Prices {
 public:
  // All outlive this.
  Prices(const StageModel& model, SubsetTable* table, const PriceOptions& options);

  // Paths are looked for in this order of all candidates, too.
  void AddOrder(const std::vector<size_t>& order);
  // With the pieces' candidates at the place they have, the others at the end.
  void AddOrderOf(const Pieces& pieces);
  const std::vector<std::vector<size_t>>& orders() const { return orders_; }

  // Better prices for the orders so far, then the bound for all. path() is the cheapest then.
  void Improve();
  // Fills the table with the prices of bound().
  void Settle();

  double known() const { return options_.known; }
  void set_known(double cost) { options_.known = cost; }
  double bound() const { return bound_; }       // the best so far
  double tuned() const { return tuned_; }       // what Improve hoped for
  const Pieces& path() const { return path_; }  // of the last Improve; empty: none at any price
  const PathCosts& costs() const {
    return costs_;
  }                      // with the prices, that the table was filled with
  double total() const;  // of all prices that the table was filled with

 private:
  double Tune();
  double Fill(const std::vector<double>& prices);

  const StageModel& model_;
  SubsetTable* const table_;
  PriceOptions options_;
  std::vector<std::vector<size_t>> orders_;
  std::vector<double> now_, best_, filled_;  // [things priced]
  double bound_ = -kNever, tuned_ = -kNever;
  PathCosts costs_;
  Pieces path_;
};

}  // namespace strata
