// Groups of candidates that share a resource, and the paths through one group without leaving it.
// On one visit the group's limits are exact; only a group that is visited again later needs prices.
// Internal to the planner; not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/planner/exact/stages.h"

namespace strata {

inline constexpr size_t kGroupMax = 4;        // candidates; larger groups are no groups
inline constexpr size_t kGroupSharedMax = 6;  // things that a group shares

// Candidates that share, or a single one. A group that would be too large is split into single
// ones, for which bounds still hold.
struct Group {
  std::vector<size_t> members;
  size_t bits = 0;
  std::vector<size_t> shared;   // in StageModel::shared()
  std::vector<size_t> priced;   // in StageModel::Priced()
  std::vector<size_t> entries;  // in Groups::entries, one for each node
  // Whether two visits with others before, between and behind could be better than one. False: at
  // most a visit at the model's beginning and one at its end.
  bool may_split = true;
};

// Where a group is entered and left: a node of it. Single candidates have one each.
struct Entry {
  size_t group = 0;
  size_t candidate = 0;  // one with that node
};

struct Groups {
  // `apart`: each candidate alone, whatever it shares.
  Groups(const StageModel& model, const PathCosts& costs, bool apart);

  std::vector<Group> list;
  std::vector<Entry> entries;
  std::vector<size_t> group_of, entry_of;  // [candidates]
  // All priced resources belong to groups: paths that visit each group once need no prices.
  bool all_exact = true;
  // The cost of visiting groups more than once: the number of sets that their visits may have; 0
  // where there are few candidates.
  size_t splits = 0;

  bool AllFree(size_t group, size_t free) const {
    return (free & list[group].bits) == list[group].bits;
  }
  bool PartlyFree(size_t group, size_t free) const {
    return (free & list[group].bits) != 0 && !AllFree(group, free);
  }
  bool AnyPartlyFree(size_t free) const {
    for (size_t g = 0; g < list.size(); ++g) {
      if (PartlyFree(g, free)) return true;
    }
    return false;
  }
  // Whether some path may leave exactly these candidates free.
  bool Possible(size_t free) const {
    size_t wrapped = 0;
    for (size_t g = 0; g < list.size(); ++g) wrapped += !list[g].may_split && PartlyFree(g, free);
    return wrapped <= 1;
  }

 private:
  bool JoiningPays(const StageModel& model, const PathCosts& costs, const Group& group) const;
};

// The least costs of visits of a group from one point, by dynamic programming over its subsets:
// quick, but it can keep only to limits that depend on the visit's beginning, its end and its
// number of stages. For other limits, separate runs give the least that each resource needs.
class VisitTable {
 public:
  VisitTable(const StageModel& model, const Groups& groups, size_t group);

  // Stages cost `stages` [members], nullptr: nothing. `hops` may be nullptr, too. A visit with i +
  // 1 stages ends at end_max[i] at most.
  void Run(absl::Span<const Linear* const> stages, const PathCosts* hops, size_t begin,
           absl::Span<const size_t> end_max);
  // Costs by end point. `set`: members, as bits by index; `in`, `out`: entries, by index in the
  // group.
  const double* Row(size_t set, size_t in, size_t out) const {
    return &rows_[((set * n_ports_ + in) * n_ports_ + out) * model_.n_points()];
  }

 private:
  const StageModel& model_;
  const Group& group_;
  const size_t n_ports_;
  std::vector<size_t> port_;  // [members]
  std::vector<double> rows_;  // [sets, ports, ports, points]
};

// A path through a group up to a stage of a visit.
struct VisitPath {
  double cost = 0;
  std::array<double, kGroupSharedMax> taken{};  // of the group's shared resources
  uint32_t parent = UINT32_MAX;                 // in VisitFinder::paths()
  uint32_t next = UINT32_MAX;                   // the next one with the same end
  uint32_t begin = 0, end = 0;
  uint32_t set = 0;             // of members, as bits by index of `members`
  uint8_t first = 0, last = 0;  // candidates
};

class VisitFinder {
 public:
  // `strict`: paths keep to the group's limits. Arguments outlive this.
  VisitFinder(const StageModel& model, const Groups& groups, size_t group, bool strict);

  // Finds all paths from `begin` through candidates in `free` that no other dominates, with `taken`
  // of each shared resource used before.
  void Run(const PathCosts& costs, size_t begin, size_t free, absl::Span<const double> taken);
  // Of the last Run, in the order in which they were found.
  const std::vector<VisitPath>& paths() const { return paths_; }
  bool Alive(size_t path) const { return alive_[path]; }  // no other is better in everything
  size_t Bits(const VisitPath& path) const;               // its candidates
  Pieces PiecesOf(size_t path) const;
  double work() const { return work_; }  // steps that the last Run took

 private:
  void Extend(const PathCosts& costs, uint32_t from, size_t begin, size_t member,
              absl::Span<const double> taken);
  void Insert(const VisitPath& path);
  uint32_t* Head(const VisitPath& path);  // of the list of paths with the same end

  const StageModel& model_;
  const Group& group_;
  const bool strict_;
  std::vector<VisitPath> paths_;
  std::vector<bool> alive_;
  std::vector<uint32_t> heads_;  // [sets, entries, entries, points]
  std::vector<size_t> port_;     // [candidates], its entry's number in the group
  double work_ = 0;
};

}  // namespace strata
