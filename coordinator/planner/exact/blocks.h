// Costs of visits to a group from point to point, for all points at once: the exact planner's
// tables are filled from these. Internal to the planner; pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/planner/exact/stages.h"
#include "coordinator/planner/exact/visits.h"

namespace strata {

// Costs of a visit with several stages, from point to point.
struct VisitBlock {
  size_t set = 0;                     // of candidates that it may have
  size_t in = 0, out = 0;             // entries
  std::vector<double> costs;          // [ends, begins]
  std::vector<uint32_t> first, stop;  // [ends], the range of begins with a path there

  void Offer(size_t begin, size_t end, double cost, size_t n_points);
};

// Visits that are their group's only one. With two candidates: within its limits. With more: lower
// bounds, within each limit, but perhaps not within all at once.
std::vector<VisitBlock> OnceBlocks(const StageModel& model, const Groups& groups, size_t group,
                                   const PathCosts& costs);
// Visits of several stages with some of the members, limits aside; `in` and `out` are any.
std::vector<VisitBlock> PartBlocks(const StageModel& model, const Groups& groups, size_t group,
                                   const PathCosts& costs);

}  // namespace strata
