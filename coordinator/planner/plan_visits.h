// Candidates that share something, as groups, and the ways through one group without leaving it. On
// one visit the group's limits are exact; only a group that is visited again later needs prices.
// Internal to the planner; not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/planner/plan_stages.h"

namespace strata {

inline constexpr size_t kGroupMax = 4;        // candidates; larger groups are no groups
inline constexpr size_t kGroupSharedMax = 6;  // things that a group shares

// Candidates that share, or a single one. A group that would be too large is so many single ones,
// which is true as far as bounds go.
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
  // `apart`: everybody alone, whatever they share.
  Groups(const StageModel& model, const PathCosts& costs, bool apart);

  std::vector<Group> list;
  std::vector<Entry> entries;
  std::vector<size_t> group_of, entry_of;  // [candidates]
  // All that is priced belongs to groups: paths that visit each group once need no prices.
  bool all_exact = true;
  // How dear it is that groups may be visited more than once: the sets that their visits may have;
  // 0 where there are few candidates.
  size_t splits = 0;

  bool Whole(size_t group, size_t free) const {
    return (free & list[group].bits) == list[group].bits;
  }
  bool Partial(size_t group, size_t free) const {
    return (free & list[group].bits) != 0 && !Whole(group, free);
  }
  bool AnyPartial(size_t free) const {
    for (size_t g = 0; g < list.size(); ++g) {
      if (Partial(g, free)) return true;
    }
    return false;
  }
  // Whether a path may come to have these left.
  bool Possible(size_t free) const {
    size_t wrapped = 0;
    for (size_t g = 0; g < list.size(); ++g) wrapped += !list[g].may_split && Partial(g, free);
    return wrapped <= 1;
  }

 private:
  bool JoiningPays(const StageModel& model, const PathCosts& costs, const Group& group) const;
};

// The least that visits of a group from one point cost, by dynamic programming over its subsets:
// quick, but it can keep only to limits that depend on nothing but where a visit begins and ends
// and how many stages it has. Of more than that, separate runs give what each takes at least.
class VisitTable {
 public:
  VisitTable(const StageModel& model, const Groups& groups, size_t group);

  // Stages cost `stages` [members], nullptr: nothing. `hops` may be nullptr, too. A visit with i +
  // 1 stages ends at end_max[i] at most.
  void Run(absl::Span<const Linear* const> stages, const PathCosts* hops, size_t begin,
           absl::Span<const size_t> end_max);
  // Of all points. `set`: members, as bits by place; ports: its entries, by place in the group.
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

// After a stage of a visit.
struct Way {
  double cost = 0;
  std::array<double, kGroupSharedMax> taken{};  // of what the group shares
  uint32_t parent = UINT32_MAX;                 // in VisitFinder::ways()
  uint32_t next = UINT32_MAX;                   // that ends alike
  uint32_t begin = 0, end = 0;
  uint32_t set = 0;             // of members, as bits by place in `members`
  uint8_t first = 0, last = 0;  // candidates
};

class VisitFinder {
 public:
  // `strict`: the group's limits are kept. Arguments outlive this.
  VisitFinder(const StageModel& model, const Groups& groups, size_t group, bool strict);

  // Finds all ways from `begin` through candidates in `free`, with `taken` of each shared thing
  // gone before, that differ in something that matters.
  void Run(const PathCosts& costs, size_t begin, size_t free, absl::Span<const double> taken);
  // Of the last Run, in the order that they were found.
  const std::vector<Way>& ways() const { return ways_; }
  bool Alive(size_t way) const { return alive_[way]; }  // no other is better in everything
  size_t Bits(const Way& way) const;                    // its candidates
  Pieces PiecesOf(size_t way) const;
  double work() const { return work_; }  // steps that the last Run took

 private:
  void Extend(const PathCosts& costs, uint32_t from, size_t begin, size_t member,
              absl::Span<const double> taken);
  void Insert(const Way& way);
  uint32_t* Head(const Way& way);  // of the list of those that end alike

  const StageModel& model_;
  const Group& group_;
  const bool strict_;
  std::vector<Way> ways_;
  std::vector<bool> alive_;
  std::vector<uint32_t> heads_;  // [sets, entries, entries, points]
  std::vector<size_t> port_;     // [candidates], its entry's number in the group
  double work_ = 0;
};

}  // namespace strata
