// All paths that could be better than the best known one, without dominated ones: labels of a
// constrained shortest path, each with its cost and its use of the resources that the devices still
// free share (Dumitrescu and Boland 2003, "Improved
// preprocessing, labeling and scaling algorithms for the weight-constrained shortest path
// problem"). A label is dropped when another one is no worse in any of these, or when it cannot be
// completed cheaply enough at the given prices. Internal to the planner; pure; any thread.
#pragma once

#include <cstddef>

#include "coordinator/planner/exact/stages.h"
#include "coordinator/planner/exact/table.h"

namespace strata {

struct LabelSearch {
  const StageModel* model = nullptr;
  const Groups* groups = nullptr;
  const PathCosts* costs = nullptr;   // to be minimized
  const PathCosts* priced = nullptr;  // `costs` with prices
  const PlanTable* table = nullptr;   // filled with these
  double prices = 0;                  // the sum for resources outside groups
  double cost_limit = kNever;         // only paths below it are of interest
  bool any = false;                   // the first path found suffices
  double work_max = 0;                // steps of the inner loop, some ns each
};

struct LabelResult {
  Pieces pieces;  // empty: none
  double cost = kNever;
  bool is_complete = false;  // no other is cheaper; false: the work limit was reached
  double work = 0;
};

LabelResult FindCheapest(const LabelSearch& search);

}  // namespace strata
