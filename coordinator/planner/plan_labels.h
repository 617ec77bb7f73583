// All paths that could be better than the best that is known, as far as they differ in something
// that matters: labels of a constrained shortest path, each with its cost and with what it took of
// the things that the devices still free share (Dumitrescu and Boland 2003, "Improved
// preprocessing, labeling and scaling algorithms for the weight-constrained shortest path
// problem"). A label goes when another one is no worse in any of these, or when it cannot be
// completed cheaply enough at the given prices. Internal to the planner; pure; any thread.
#pragma once

#include <cstddef>

#include "coordinator/planner/plan_stages.h"
#include "coordinator/planner/plan_table.h"

namespace strata {

struct LabelSearch {
  const StageModel* model = nullptr;
  const Groups* groups = nullptr;
  const PathCosts* costs = nullptr;   // to be made least
  const PathCosts* priced = nullptr;  // `costs` with prices
  const PlanTable* table = nullptr;   // filled with these
  double prices = 0;                  // of what belongs to no group, together
  double cost_limit = kNever;         // only what costs less is of interest
  bool any = false;                   // the first path found will do
  double work_max = 0;                // steps of the inner loop, some ns each
};

struct LabelResult {
  Pieces pieces;  // empty: none
  double cost = kNever;
  bool is_complete = false;  // no other is cheaper; false: the work was too much
  double work = 0;
};

LabelResult FindCheapest(const LabelSearch& search);

}  // namespace strata
