#include "shard/engine/row_groups.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace strata {

std::vector<std::vector<uint32_t>> EqualGroups(absl::Span<const int32_t> slots) {
  struct Sequence {
    std::vector<uint32_t> rows;
    size_t done = 0;
  };
  std::map<int32_t, Sequence> sequences;  // by slot
  for (uint32_t row = 0; row < slots.size(); ++row) sequences[slots[row]].rows.push_back(row);

  std::vector<std::vector<uint32_t>> groups;
  while (true) {
    size_t n = 0;  // rows of each sequence in this group: what the shortest has left
    for (const auto& [slot, s] : sequences) {
      const size_t left = s.rows.size() - s.done;
      if (left > 0) n = n == 0 ? left : std::min(n, left);
    }
    if (n == 0) return groups;
    std::vector<uint32_t>& group = groups.emplace_back();
    for (auto& [slot, s] : sequences) {
      if (s.done == s.rows.size()) continue;
      group.insert(group.end(), s.rows.begin() + s.done, s.rows.begin() + s.done + n);
      s.done += n;
    }
  }
}

}  // namespace strata
