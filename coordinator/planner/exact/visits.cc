#include "coordinator/planner/exact/visits.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <utility>

namespace strata {
namespace {

constexpr uint32_t kNoPath = UINT32_MAX;
constexpr double kHopRounding = 1e-12;
constexpr size_t kCheapMax = 8;    // candidates
constexpr double kInsertWork = 4;  // steps as of LabelSearch::work_max

}  // namespace

Groups::Groups(const StageModel& model, const PathCosts& costs, bool apart) {
  const size_t n = model.n();
  // For each candidate, the lowest one that it shares with, directly or not.
  std::vector<size_t> root(n);
  std::iota(root.begin(), root.end(), size_t{0});
  for (const Shared& shared : model.shared()) {
    if (apart) break;
    for (const size_t c : shared.users) {
      const size_t from = root[c], to = root[shared.users.front()];
      for (size_t& each : root) {
        if (each == std::max(from, to)) each = std::min(from, to);
      }
    }
  }
  const auto count = [&](size_t r) {
    return static_cast<size_t>(std::count(root.begin(), root.end(), r));
  };
  const auto things = [&](size_t r) {
    size_t sum = 0;
    for (const Shared& shared : model.shared()) sum += root[shared.users.front()] == r;
    return sum;
  };
  std::vector<bool> alone(n);
  for (size_t c = 0; c < n; ++c) {
    alone[c] = count(root[c]) > kGroupMax || things(root[c]) > kGroupSharedMax;
    all_exact = all_exact && !alone[c];
  }
  std::map<size_t, size_t> numbers;
  group_of.resize(n);
  entry_of.resize(n);
  for (size_t c = 0; c < n; ++c) {
    const auto [at, is_new] = numbers.emplace(alone[c] ? c : root[c], list.size());
    if (is_new) list.emplace_back();
    group_of[c] = at->second;
    Group& group = list[at->second];
    group.members.push_back(c);
    group.bits |= size_t{1} << c;
    const auto same_node = std::find_if(group.entries.begin(), group.entries.end(), [&](size_t e) {
      return model.node(entries[e].candidate) == model.node(c);
    });
    if (same_node != group.entries.end()) {
      entry_of[c] = *same_node;
    } else {
      entry_of[c] = entries.size();
      group.entries.push_back(entries.size());
      entries.push_back({at->second, c});
    }
  }
  for (Group& group : list) {
    if (group.members.size() < 2) continue;
    const auto mine = [&](const Shared& shared) {
      return (group.bits >> shared.users.front() & 1) != 0;
    };
    for (size_t i = 0; i < model.shared().size(); ++i) {
      if (mine(model.shared()[i])) group.shared.push_back(i);
    }
    for (size_t i = 0; i < model.n_prices(); ++i) {
      if (mine(model.Priced(i))) group.priced.push_back(i);
    }
    group.may_split = !model.uniform() || !JoiningPays(model, costs, group);
    if (group.may_split && n > kCheapMax) splits += size_t{1} << group.members.size();
  }
}

// Whether moving a visit next to another visit of the group never costs more. Where stages cost the
// same everywhere only the hops change: `in` … `out` is no longer between Z and W, but behind a
// stage at `at` that Y follows, or before one that follows Y.
bool Groups::JoiningPays(const StageModel& model, const PathCosts& costs,
                         const Group& group) const {
  const auto hop = [&](size_t from, size_t to) {
    return costs.hops[model.node(from) * model.n() + to];
  };
  std::vector<size_t> others, own;
  for (const Entry& entry : entries) {
    (&list[entry.group] == &group ? own : others).push_back(entry.candidate);
  }
  // The most that the change costs; links that do not exist need no change.
  const auto more = [](double now, double before) {
    return before == kNever ? -kNever : now - before;
  };
  for (const size_t in : own) {
    for (const size_t out : own) {
      double taken_out = -kNever, put_in = -kNever;
      for (const size_t z : others) {
        for (const size_t w : others) {
          taken_out = std::max(taken_out, more(hop(z, w), hop(z, in) + hop(out, w)));
        }
        for (const size_t at : own) {
          put_in = std::max(put_in, more(hop(at, in) + hop(out, z), hop(at, z)));
          put_in = std::max(put_in, more(hop(z, in) + hop(out, at), hop(z, at)));
        }
      }
      if (taken_out + put_in > kHopRounding) return false;
    }
  }
  return true;
}

VisitTable::VisitTable(const StageModel& model, const Groups& groups, size_t group)
    : model_(model),
      group_(groups.list[group]),
      n_ports_(group_.entries.size()),
      rows_((size_t{1} << group_.members.size()) * n_ports_ * n_ports_ * model.n_points()) {
  for (const size_t c : group_.members) {
    port_.push_back(static_cast<size_t>(
        std::find(group_.entries.begin(), group_.entries.end(), groups.entry_of[c]) -
        group_.entries.begin()));
  }
}

void VisitTable::Run(absl::Span<const Linear* const> stages, const PathCosts* hops, size_t begin,
                     absl::Span<const size_t> end_max) {
  std::fill(rows_.begin(), rows_.end(), kNever);
  const size_t n = group_.members.size();
  // Adds a stage of `member` from `point`, after a visit of cost `cost`.
  const auto add = [&](size_t member, size_t point, double cost, size_t most, double* row) {
    const size_t c = group_.members[member];
    const std::vector<uint32_t>& at = model_.windows_at(c);
    const Linear* stage = stages[member];
    for (size_t i = at[point]; i < at[point + 1]; ++i) {
      const Window& window = model_.windows(c)[i];
      const size_t last = std::min(size_t{window.last}, most);
      if (stage == nullptr) {
        for (size_t end = window.first; end <= last; ++end) row[end] = std::min(row[end], cost);
        continue;
      }
      const double base = cost + stage->fixed - stage->before[point];
      const double* before = stage->before.data();
      for (size_t end = window.first; end <= last; ++end) {
        const double sum = base + before[end];
        row[end] = sum < row[end] ? sum : row[end];
      }
    }
  };
  const auto row_of = [&](size_t set, size_t in, size_t out) {
    return &rows_[((set * n_ports_ + in) * n_ports_ + out) * model_.n_points()];
  };
  for (size_t member = 0; member < n; ++member) {
    add(member, begin, 0, end_max[0], row_of(size_t{1} << member, port_[member], port_[member]));
  }
  for (size_t set = 1; set + 1 < size_t{1} << n; ++set) {
    const auto count = static_cast<size_t>(std::popcount(set));
    for (size_t in = 0; in < n_ports_; ++in) {
      for (size_t out = 0; out < n_ports_; ++out) {
        const double* row = Row(set, in, out);
        for (size_t member = 0; member < n; ++member) {
          if ((set >> member & 1) != 0) continue;
          double hop = 0;
          if (hops != nullptr) {
            size_t from = 0;
            while (port_[from] != out) ++from;
            hop =
                hops->hops[model_.node(group_.members[from]) * model_.n() + group_.members[member]];
            if (hop == kNever) continue;
          }
          double* next = row_of(set | size_t{1} << member, in, port_[member]);
          for (size_t point = begin + 1; point < model_.last_point(); ++point) {
            if (row[point] < kNever) add(member, point, row[point] + hop, end_max[count], next);
          }
        }
      }
    }
  }
}

VisitFinder::VisitFinder(const StageModel& model, const Groups& groups, size_t group, bool strict)
    : model_(model),
      group_(groups.list[group]),
      strict_(strict),
      heads_((size_t{1} << group_.members.size()) * group_.entries.size() * group_.entries.size() *
                 model.n_points(),
             kNoPath),
      port_(model.n()) {
  for (const size_t c : group_.members) {
    port_[c] = static_cast<size_t>(
        std::find(group_.entries.begin(), group_.entries.end(), groups.entry_of[c]) -
        group_.entries.begin());
  }
}

size_t VisitFinder::Bits(const VisitPath& path) const {
  size_t bits = 0;
  for (size_t i = 0; i < group_.members.size(); ++i) {
    if ((path.set >> i & 1) != 0) bits |= size_t{1} << group_.members[i];
  }
  return bits;
}

Pieces VisitFinder::PiecesOf(size_t path) const {
  Pieces pieces;
  for (uint32_t at = static_cast<uint32_t>(path); at != kNoPath; at = paths_[at].parent) {
    pieces.push_back({paths_[at].last, paths_[at].begin, paths_[at].end});
  }
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

uint32_t* VisitFinder::Head(const VisitPath& path) {
  const size_t n_ports = group_.entries.size();
  return &heads_[((path.set * n_ports + port_[path.first]) * n_ports + port_[path.last]) *
                     model_.n_points() +
                 path.end];
}

void VisitFinder::Insert(const VisitPath& path) {
  work_ += kInsertWork;
  uint32_t* head = Head(path);
  const auto no_more = [](const VisitPath& a, const VisitPath& b) {
    for (size_t i = 0; i < kGroupSharedMax; ++i) {
      if (a.taken[i] > b.taken[i]) return false;
    }
    return a.cost <= b.cost;
  };
  for (uint32_t* at = head; *at != kNoPath;) {
    if (no_more(paths_[*at], path)) return;
    if (no_more(path, paths_[*at])) {
      alive_[*at] = false;
      *at = paths_[*at].next;
    } else {
      at = &paths_[*at].next;
    }
  }
  paths_.push_back(path);
  paths_.back().next = *head;
  *head = static_cast<uint32_t>(paths_.size() - 1);
  alive_.push_back(true);
}

void VisitFinder::Extend(const PathCosts& costs, uint32_t from, size_t begin, size_t member,
                         absl::Span<const double> taken) {
  const size_t c = group_.members[member];
  VisitPath path;
  double hop = 0;
  if (from == kNoPath) {
    path.first = static_cast<uint8_t>(c);
    if (strict_) std::copy(taken.begin(), taken.end(), path.taken.begin());
  } else {
    path = paths_[from];
    hop = costs.hops[model_.node(path.last) * model_.n() + c];
    if (hop == kNever) return;
  }
  path.parent = from;
  path.begin = static_cast<uint32_t>(begin);
  path.last = static_cast<uint8_t>(c);
  path.set |= 1u << member;
  const Linear& stage = costs.stages[c];
  const double cost = path.cost + hop;
  const std::array<double, kGroupSharedMax> before = path.taken;
  const std::vector<uint32_t>& windows = model_.windows_at(c);
  for (size_t i = windows[begin]; i < windows[begin + 1]; ++i) {
    const Window& window = model_.windows(c)[i];
    for (size_t end = window.first; end <= window.last; ++end) {
      for (size_t k = 0; strict_ && k < group_.shared.size(); ++k) {
        const Shared& shared = model_.shared()[group_.shared[k]];
        if (shared.takes[c].before.empty()) continue;
        path.taken[k] = before[k] + shared.takes[c].Of(begin, end);
        if (path.taken[k] > shared.capacity) return;
      }
      path.cost = cost + stage.Of(begin, end);
      path.end = static_cast<uint32_t>(end);
      Insert(path);
    }
  }
}

void VisitFinder::Run(const PathCosts& costs, size_t begin, size_t free,
                      absl::Span<const double> taken) {
  for (const VisitPath& path : paths_) *Head(path) = kNoPath;
  paths_.clear();
  alive_.clear();
  work_ = 0;
  const size_t n = group_.members.size();
  for (size_t i = 0; i < n; ++i) {
    if ((free >> group_.members[i] & 1) != 0) Extend(costs, kNoPath, begin, i, taken);
  }
  // By number of stages: longer paths are found later, and dominated ones must not be extended.
  for (size_t at = 0; at < paths_.size(); ++at) {
    if (!alive_[at]) continue;
    const VisitPath path = paths_[at];
    if (path.end == model_.last_point()) continue;
    for (size_t i = 0; i < n; ++i) {
      if ((path.set >> i & 1) != 0 || (free >> group_.members[i] & 1) == 0) continue;
      Extend(costs, static_cast<uint32_t>(at), path.end, i, taken);
    }
  }
}

}  // namespace strata
