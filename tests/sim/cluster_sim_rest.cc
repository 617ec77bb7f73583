// Whether a cluster has come to rest, and what it should be like then.
#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster_sim.h"

namespace strata {
namespace {

constexpr size_t kNone = SIZE_MAX;

}  // namespace

std::string ClusterSim::Unrest() {
  std::vector<size_t> group_of(nodes_.size(), kNone);
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (!running(n)) continue;
    const size_t c = CoordinatorOf(n);
    if (c == kNone) return absl::StrCat("node ", n, " obeys nobody");
    if (!running(c) || CoordinatorOf(c) != c) {
      return absl::StrCat("node ", n, " obeys ", c, ", which does not coordinate");
    }
    group_of[n] = c;
  }
  std::vector<std::vector<size_t>> groups(nodes_.size());
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (running(n)) groups[group_of[n]].push_back(n);
  }
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (!running(n)) continue;
    const size_t c = group_of[n];
    const ClusterView& view = View(n);
    if (view.epoch != View(c).epoch) return absl::StrCat("epochs of ", n, " and ", c, " differ");
    std::vector<size_t> members;
    for (const NodeId& id : view.members) members.push_back(NumberOf(id));
    std::sort(members.begin(), members.end());
    if (members != groups[c]) {
      return absl::StrCat("node ", n, " sees ", members.size(), " members of the ",
                          groups[c].size(), " that obey ", c);
    }
  }
  const auto all_linked = [&](const std::vector<size_t>& a, const std::vector<size_t>& b) {
    return std::all_of(a.begin(), a.end(), [&](size_t x) {
      return std::all_of(b.begin(), b.end(), [&](size_t y) { return x == y || Linked(x, y); });
    });
  };
  for (size_t a = 0; a < groups.size(); ++a) {
    if (groups[a].empty()) continue;
    if (!all_linked(groups[a], groups[a])) return absl::StrCat("group of ", a, " is not linked");
    for (size_t b = a + 1; b < groups.size(); ++b) {
      if (!groups[b].empty() && all_linked(groups[a], groups[b])) {
        return absl::StrCat("groups of ", a, " (", groups[a].size(), ") and ", b, " (",
                            groups[b].size(), ") could be one");
      }
    }
  }
  return "";
}

std::vector<bool> ClusterSim::InWorkingGroups() {
  std::vector<bool> working(nodes_.size());
  for (size_t n = 0; n < nodes_.size(); ++n) {
    for (size_t k = 0; k < nodes_.size() && running(n); ++k) {
      if (running(k) && nodes_[k].live > 0 && CoordinatorOf(k) == CoordinatorOf(n)) {
        working[n] = true;
      }
    }
  }
  return working;
}

std::string ClusterSim::Unmoved() {
  struct Group {
    std::vector<size_t> members;
    uint64_t requests = 0;
  };
  std::map<size_t, Group> groups;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (!running(n)) continue;
    Group& group = groups[CoordinatorOf(n)];
    group.members.push_back(n);
    group.requests += nodes_[n].live;
  }
  const auto size = [](const Group& group) {
    return std::pair(std::bit_width(group.requests), group.members.size());
  };
  for (const auto& [from, mine] : groups) {
    if (mine.requests != 0) continue;
    for (const auto& [to, other] : groups) {
      if (size(other) <= size(mine)) continue;
      for (const size_t n : mine.members) {
        const std::vector<size_t>& others = other.members;
        const bool linked =
            std::all_of(others.begin(), others.end(), [&](size_t k) { return Linked(n, k); });
        if (linked && n != from) {
          return absl::StrCat("node ", n, " could move from the group of ", from, " to that of ",
                              to);
        }
      }
    }
  }
  return "";
}

}  // namespace strata
