#include "coordinator/planner/exact/blocks.h"

#include <algorithm>
#include <bit>

namespace strata {
namespace {

VisitBlock* BlockOf(std::vector<VisitBlock>* blocks, size_t set, size_t in, size_t out,
                    size_t n_points) {
  for (VisitBlock& block : *blocks) {
    if (block.set == set && block.in == in && block.out == out) return &block;
  }
  blocks->push_back({set, in, out, std::vector<double>(n_points * n_points, kNever),
                     std::vector<uint32_t>(n_points, UINT32_MAX),
                     std::vector<uint32_t>(n_points, 0)});
  return &blocks->back();
}

// Visits of two candidates at most, within the group's limits.
std::vector<VisitBlock> PairBlocks(const StageModel& model, const Groups& groups, size_t g,
                                   const PathCosts& costs) {
  const size_t n_points = model.n_points();
  std::vector<VisitBlock> blocks;
  const Group& group = groups.list[g];
  VisitFinder finder(model, groups, g, /*strict=*/true);
  const std::vector<double> nothing(group.shared.size(), 0.0);
  for (size_t begin = 0; begin + 1 < n_points; ++begin) {
    finder.Run(costs, begin, group.bits, nothing);
    for (size_t i = 0; i < finder.paths().size(); ++i) {
      const VisitPath& path = finder.paths()[i];
      if (!finder.Alive(i)) continue;
      VisitBlock* block = BlockOf(&blocks, group.bits, groups.entry_of[path.first],
                                  groups.entry_of[path.last], n_points);
      block->Offer(begin, path.end, path.cost, n_points);
    }
  }
  return blocks;
}

// Visits of more candidates: within each of the group's limits, but perhaps not within all at once.
std::vector<VisitBlock> LargerBlocks(const StageModel& model, const Groups& groups, size_t g,
                                     const PathCosts& costs) {
  const size_t n_points = model.n_points();
  std::vector<VisitBlock> blocks;
  const Group& group = groups.list[g];
  const size_t n = group.members.size(), n_ports = group.entries.size();
  const auto linear = [&](const std::vector<Linear>& of) {
    std::vector<const Linear*> stages;
    for (const size_t c : group.members) stages.push_back(of[c].before.empty() ? nullptr : &of[c]);
    return stages;
  };
  // A resource that all stages use alike depends on the visit's beginning and end only.
  std::vector<size_t> alike, unlike;
  for (const size_t i : group.shared) {
    const std::vector<Linear>& takes = model.shared()[i].takes;
    const bool same = std::all_of(group.members.begin(), group.members.end(), [&](size_t c) {
      return !takes[c].before.empty() && takes[c].fixed == takes[group.members[0]].fixed &&
             takes[c].before == takes[group.members[0]].before;
    });
    (same ? alike : unlike).push_back(i);
  }
  VisitTable sums(model, groups, g);
  std::vector<VisitTable> takes(unlike.size(), sums);
  for (size_t begin = 0; begin + 1 < n_points; ++begin) {
    std::vector<size_t> end_max(n, n_points - 1);
    for (size_t k = 0; k < n; ++k) {
      for (const size_t i : alike) {
        const Shared& shared = model.shared()[i];
        const Linear& each = shared.takes[group.members[0]];
        while (end_max[k] > begin &&
               each.Of(begin, end_max[k]) + static_cast<double>(k) * each.fixed > shared.capacity) {
          --end_max[k];
        }
      }
    }
    sums.Run(linear(costs.stages), &costs, begin, end_max);
    for (size_t i = 0; i < unlike.size(); ++i) {
      takes[i].Run(linear(model.shared()[unlike[i]].takes), nullptr, begin, end_max);
    }
    for (size_t set = 1; set < size_t{1} << n; ++set) {
      for (size_t in = 0; in < n_ports; ++in) {
        for (size_t out = 0; out < n_ports; ++out) {
          VisitBlock* block = nullptr;
          const double* row = sums.Row(set, in, out);
          for (size_t end = begin + 1; end < n_points; ++end) {
            if (row[end] == kNever) continue;
            bool fits = true;
            for (size_t i = 0; i < unlike.size() && fits; ++i) {
              fits = takes[i].Row(set, in, out)[end] <= model.shared()[unlike[i]].capacity;
            }
            if (!fits) continue;
            if (block == nullptr) {
              block = BlockOf(&blocks, group.bits, group.entries[in], group.entries[out], n_points);
            }
            block->Offer(begin, end, row[end], n_points);
          }
        }
      }
    }
  }
  return blocks;
}

}  // namespace

void VisitBlock::Offer(size_t begin, size_t end, double cost, size_t n_points) {
  double* now = &costs[end * n_points + begin];
  *now = std::min(*now, cost);
  first[end] = std::min(first[end], static_cast<uint32_t>(begin));
  stop[end] = std::max(stop[end], static_cast<uint32_t>(begin + 1));
}

std::vector<VisitBlock> OnceBlocks(const StageModel& model, const Groups& groups, size_t group,
                                   const PathCosts& costs) {
  return groups.list[group].members.size() == 2 ? PairBlocks(model, groups, group, costs)
                                                : LargerBlocks(model, groups, group, costs);
}

std::vector<VisitBlock> PartBlocks(const StageModel& model, const Groups& groups, size_t g,
                                   const PathCosts& costs) {
  const size_t n_points = model.n_points();
  std::vector<VisitBlock> blocks;
  const Group& group = groups.list[g];
  const size_t n = group.members.size(), n_ports = group.entries.size();
  std::vector<const Linear*> stages;
  for (const size_t c : group.members) stages.push_back(&costs.stages[c]);
  const std::vector<size_t> end_max(n, n_points - 1);
  VisitTable sums(model, groups, g);
  for (size_t begin = 0; begin + 1 < n_points; ++begin) {
    sums.Run(stages, &costs, begin, end_max);
    for (size_t set = 1; set + 1 < size_t{1} << n; ++set) {
      if (std::popcount(set) < 2) continue;  // single stages are quicker without
      size_t bits = 0;
      for (size_t i = 0; i < n; ++i) {
        if ((set >> i & 1) != 0) bits |= size_t{1} << group.members[i];
      }
      VisitBlock* block =
          BlockOf(&blocks, bits, groups.entries.size(), groups.entries.size(), n_points);
      for (size_t ports = 0; ports < n_ports * n_ports; ++ports) {
        const double* row = sums.Row(set, ports / n_ports, ports % n_ports);
        for (size_t end = begin + 1; end < n_points; ++end) {
          if (row[end] < kNever) block->Offer(begin, end, row[end], n_points);
        }
      }
    }
  }
  return blocks;
}

}  // namespace strata
