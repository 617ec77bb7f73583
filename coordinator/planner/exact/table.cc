#include "coordinator/planner/exact/table.h"

#include <algorithm>
#include <bit>

namespace strata {
namespace {

// The cost of a stage that begins at each point, with the best of its ends; `least` has the
// remaining cost after each end, for kSum with the stage's own cost until there.
void BestStages(Aim aim, const StageModel& model, size_t candidate, const Linear& stage,
                const RangeMin& least, double* from) {
  const double* before = stage.before.data();
  for (const Window& window : model.windows(candidate)) {
    double best = kNever;
    const double offset = stage.fixed - before[window.begin];
    if (aim == Aim::kSum) {
      best = offset + least.Least(window.first, window.last);
    } else {
      // A longer stage costs more and leaves less: the best end is where the two meet.
      size_t low = window.first, high = window.last;
      while (low < high) {
        const size_t middle = (low + high) / 2;
        if (offset + before[middle] >= least.Least(window.first, middle)) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      best = std::max(offset + before[low], least.Least(window.first, low));
      if (low > window.first) best = std::min(best, least.Least(window.first, low - 1));
    }
    from[window.begin] = std::min(from[window.begin], best);
  }
}

void Prepare(Aim aim, const Linear& stage, const double* after, size_t n_points, RangeMin* least) {
  double* values = least->values();
  if (aim == Aim::kSum) {
    for (size_t p = 0; p < n_points; ++p) values[p] = stage.before[p] + after[p];
  } else {
    std::copy(after, after + n_points, values);
  }
  least->Build();
}

}  // namespace

RangeMin::RangeMin(size_t n) : n_(n), levels_(n), table_(n * std::bit_width(n)) {
  for (size_t length = 1; length <= n; ++length) {
    levels_[length - 1] = static_cast<uint8_t>(std::bit_width(length) - 1);
  }
}

void RangeMin::Build() {
  for (size_t step = 1; 2 * step <= n_; step *= 2) {
    const size_t level = levels_[step - 1];
    const double* half = &table_[level * n_];
    double* whole = &table_[(level + 1) * n_];
    for (size_t i = 0; i + 2 * step <= n_; ++i) {
      whole[i] = half[i] < half[i + step] ? half[i] : half[i + step];
    }
  }
}

PlanTable::PlanTable(size_t n, size_t n_points)
    : n_(n),
      n_points_(n_points),
      after_((size_t{1} << n) * n * n_points),
      from_((size_t{1} << n) * n * n_points),
      row_(n_points),
      least_(n_points) {}

void PlanTable::AddBlock(const VisitBlock& block, const double* after, double credit,
                         double* from) const {
  for (size_t end = 1; end < n_points_; ++end) {
    const double left = after[end] - credit;
    if (left == kNever) continue;
    const double* costs = &block.costs[end * n_points_];
    for (size_t begin = block.first[end]; begin < block.stop[end]; ++begin) {
      const double cost = costs[begin] + left;
      from[begin] = cost < from[begin] ? cost : from[begin];
    }
  }
}

void PlanTable::AddStage(const PathCosts& costs, size_t candidate, const double* after,
                         double credit, double* from) {
  Linear stage = costs.stages[candidate];
  stage.fixed -= credit;
  Prepare(aim_, stage, after, n_points_, &least_);
  BestStages(aim_, *model_, candidate, stage, least_, from);
}

// The group comes next, as its only visit.
void PlanTable::FillGroup(size_t free, size_t g) {
  const Group& group = groups_->list[g];
  for (const size_t entry : group.entries) {
    std::fill_n(Row(&from_, free, entry), n_points_, kNever);
  }
  if (!groups_->AllFree(g, free)) return;
  const size_t left = free & ~group.bits;
  if (group.members.size() == 1) {
    const size_t entry = group.entries[0];
    AddStage(priced_ != nullptr ? *priced_ : *costs_, group.members[0], Row(&after_, left, entry),
             0, Row(&from_, free, entry));
    return;
  }
  for (const VisitBlock& block : once_[g]) {
    AddBlock(block, Row(&after_, left, block.out), 0, Row(&from_, free, block.in));
  }
}

// The group comes next, with another visit before or after.
void PlanTable::FillAgain(size_t free, size_t g) {
  const Group& group = groups_->list[g];
  if (group.members.size() == 1) return;
  for (const size_t entry : group.entries) {
    std::fill_n(Row(&again_, free, entry), n_points_, kNever);
  }
  const size_t mine = free & group.bits;
  const bool is_first = mine == group.bits;
  const size_t all = (size_t{1} << n_) - 1;
  if (mine == 0 || (is_first && !group.may_split && free != all)) return;
  const double credit = is_first ? credits_[g] : 0;
  // After a visit, the rest of the group remains to be visited again, or nothing of it.
  const auto after = [&](size_t set, size_t entry) {
    const double* rest = Row(&after_, free & ~set, entry);
    if (is_first) return rest;
    if (!group.may_split) {
      std::fill(row_.begin(), row_.end(), kNever);
      row_.back() = Row(&after_, free & ~group.bits, entry)[n_points_ - 1];
      return static_cast<const double*>(row_.data());
    }
    const double* none = Row(&after_, free & ~group.bits, entry);
    for (size_t p = 0; p < n_points_; ++p) row_[p] = std::min(rest[p], none[p]);
    return static_cast<const double*>(row_.data());
  };
  for (const size_t c : group.members) {
    if ((free >> c & 1) == 0) continue;
    const size_t entry = groups_->entry_of[c];
    AddStage(*priced_, c, after(size_t{1} << c, entry), credit, Row(&again_, free, entry));
  }
  for (const VisitBlock& block : parts_[g]) {
    if ((block.set & ~free) != 0) continue;
    // In and out by any of its nodes.
    std::vector<double> out(n_points_, kNever);
    for (const size_t c : group.members) {
      if ((block.set >> c & 1) == 0) continue;
      const double* each = after(block.set, groups_->entry_of[c]);
      for (size_t p = 0; p < n_points_; ++p) out[p] = std::min(out[p], each[p]);
    }
    for (const size_t entry : group.entries) {
      AddBlock(block, out.data(), credit, Row(&again_, free, entry));
    }
  }
  if (is_first && !group.may_split) {
    for (const size_t entry : group.entries) {
      double* again = Row(&again_, free, entry);
      std::fill(again + 1, again + n_points_, kNever);
    }
  }
  for (const size_t entry : group.entries) {
    double* from = Row(&from_, free, entry);
    const double* again = Row(&again_, free, entry);
    for (size_t p = 0; p < n_points_; ++p) from[p] = std::min(from[p], again[p]);
  }
}

void PlanTable::FillAfter(size_t free, size_t at) {
  double* after = Row(&after_, free, at);
  std::fill_n(after, n_points_, kNever);
  const size_t node = model_->node(groups_->entries[at].candidate);
  for (size_t entry = 0; entry < groups_->entries.size(); ++entry) {
    const size_t g = groups_->entries[entry].group;
    if (g == groups_->entries[at].group || (groups_->list[g].bits & free) == 0) continue;
    const double hop = costs_->hops[node * n_ + groups_->entries[entry].candidate];
    if (hop == kNever) continue;
    const double* from = Row(&from_, free, entry);
    if (aim_ == Aim::kSum) {
      for (size_t p = 0; p < n_points_; ++p) {
        const double cost = hop + from[p];
        after[p] = cost < after[p] ? cost : after[p];
      }
    } else {
      for (size_t p = 0; p < n_points_; ++p) {
        const double cost = hop < from[p] ? from[p] : hop;
        after[p] = cost < after[p] ? cost : after[p];
      }
    }
  }
  after[n_points_ - 1] = groups_->AnyPartlyFree(free) ? kNever : costs_->back[node];
}

void PlanTable::Start(const StageModel& model, const Groups& groups, const PathCosts& costs) {
  model_ = &model;
  groups_ = &groups;
  costs_ = &costs;
  priced_ = nullptr;
  once_.assign(groups.list.size(), {});
  parts_.assign(groups.list.size(), {});
  credits_.assign(groups.list.size(), 0.0);
}

double PlanTable::Fill(Aim aim) {
  aim_ = aim;
  priced_ = nullptr;
  return FillAll();
}

double PlanTable::FillPriced(const PathCosts& priced, absl::Span<const double> prices) {
  aim_ = Aim::kSum;
  priced_ = &priced;
  again_.resize(from_.size());
  for (size_t g = 0; g < groups_->list.size(); ++g) {
    credits_[g] = 0;
    for (const size_t i : groups_->list[g].priced) credits_[g] += prices[i];
  }
  return FillAll();
}

double PlanTable::FillAll() {
  const Groups& groups = *groups_;
  for (size_t g = 0; g < groups.list.size(); ++g) {
    if (groups.list[g].members.size() == 1) continue;
    if (once_[g].empty()) once_[g] = OnceBlocks(*model_, groups, g, *costs_);
    const bool has_parts = priced_ != nullptr && groups.list[g].members.size() > 2;
    if (has_parts) parts_[g] = PartBlocks(*model_, groups, g, *priced_);
  }
  const size_t all = (size_t{1} << n_) - 1;
  for (size_t free = 0; free <= all; ++free) {
    if (priced_ == nullptr ? groups.AnyPartlyFree(free) : !groups.Possible(free)) continue;
    for (size_t g = 0; g < groups.list.size(); ++g) {
      if ((free & groups.list[g].bits) == 0) continue;
      FillGroup(free, g);
      if (priced_ != nullptr) FillAgain(free, g);
    }
    for (size_t entry = 0; entry < groups.entries.size(); ++entry) {
      if (!groups.AllFree(groups.entries[entry].group, free)) FillAfter(free, entry);
    }
  }
  double best = kNever;
  for (size_t entry = 0; entry < groups.entries.size(); ++entry) {
    best = std::min(best,
                    Join(aim_, costs_->in[groups.entries[entry].candidate], From(all, entry, 0)));
  }
  return best;
}

Visit PlanTable::VisitFrom(size_t free, size_t entry, size_t point, size_t* left,
                           size_t* out) const {
  const size_t g = groups_->entries[entry].group;
  const Group& group = groups_->list[g];
  const bool is_whole = groups_->AllFree(g, free);
  Visit visit;
  visit.group = g;
  double least = kNever;
  const auto offer = [&](double cost, size_t gone, size_t at, bool again, VisitFinder& finder,
                         size_t path) {
    cost = Join(aim_, cost, After(free & ~gone, at, finder.paths()[path].end));
    if (!(cost < least)) return;
    least = cost;
    visit.again = again;
    visit.pieces = finder.PiecesOf(path);
    *left = free & ~gone;
    *out = at;
  };
  if (is_whole) {
    const bool single = group.members.size() == 1;
    VisitFinder finder(*model_, *groups_, g, !single);
    finder.Run(single && priced_ != nullptr ? *priced_ : *costs_, point, group.bits,
               std::vector<double>(group.shared.size(), 0.0));
    for (size_t i = 0; i < finder.paths().size(); ++i) {
      const VisitPath& path = finder.paths()[i];
      if (!finder.Alive(i) || groups_->entry_of[path.first] != entry) continue;
      offer(path.cost, group.bits, groups_->entry_of[path.last], false, finder, i);
    }
  }
  if (priced_ == nullptr || group.members.size() == 1) return visit;
  VisitFinder finder(*model_, *groups_, g, /*strict=*/false);
  finder.Run(*priced_, point, free, {});
  for (size_t i = 0; i < finder.paths().size(); ++i) {
    const VisitPath& path = finder.paths()[i];
    const size_t set = finder.Bits(path);
    if (!finder.Alive(i) || (is_whole && set == group.bits)) continue;
    if (!group.may_split && (is_whole ? point > 0 : path.end + 1 < n_points_)) continue;
    const bool single = std::popcount(set) == 1;
    if (single && groups_->entry_of[path.first] != entry) continue;
    const double cost = path.cost - (is_whole ? credits_[g] : 0);
    for (const size_t c : group.members) {
      if ((set >> c & 1) == 0) continue;
      offer(cost, set, groups_->entry_of[c], true, finder, i);
      if (!is_whole) offer(cost, group.bits, groups_->entry_of[c], true, finder, i);
    }
  }
  return visit;
}

std::vector<Visit> PlanTable::Visits() const {
  std::vector<Visit> visits;
  size_t free = (size_t{1} << n_) - 1;
  size_t at = n_;  // entry
  for (size_t point = 0; point + 1 < n_points_;) {
    size_t next = n_;
    double least = kNever;
    for (size_t entry = 0; entry < groups_->entries.size(); ++entry) {
      const Entry& each = groups_->entries[entry];
      if ((groups_->list[each.group].bits & free) == 0) continue;
      if (at != n_ && each.group == groups_->entries[at].group) continue;
      const double hop =
          at == n_
              ? costs_->in[each.candidate]
              : costs_->hops[model_->node(groups_->entries[at].candidate) * n_ + each.candidate];
      const double cost = Join(aim_, hop, From(free, entry, point));
      if (cost < least) {
        least = cost;
        next = entry;
      }
    }
    if (next == n_) return {};
    visits.push_back(VisitFrom(free, next, point, &free, &at));
    if (visits.back().pieces.empty()) return {};
    point = visits.back().pieces.back().end;
  }
  return visits;
}

Pieces PlanTable::Path() const {
  Pieces pieces;
  for (const Visit& visit : Visits()) {
    pieces.insert(pieces.end(), visit.pieces.begin(), visit.pieces.end());
  }
  return pieces;
}

double CheapestInOrder(const StageModel& model, const PathCosts& costs,
                       absl::Span<const size_t> order, Pieces* pieces) {
  const size_t n = order.size(), n_points = model.n_points();
  std::vector<double> from(n * n_points, kNever), after(n * n_points, kNever);
  RangeMin least(n_points);
  const auto hop_to = [&](size_t at, size_t later) {
    return costs.hops[model.node(order[at]) * model.n() + order[later]];
  };
  for (size_t at = n; at-- > 0;) {
    double* row = &after[at * n_points];
    for (size_t later = at + 1; later < n; ++later) {
      const double hop = hop_to(at, later);
      if (hop == kNever) continue;
      const double* next = &from[later * n_points];
      for (size_t p = 0; p < n_points; ++p) {
        const double cost = hop + next[p];
        row[p] = cost < row[p] ? cost : row[p];
      }
    }
    row[n_points - 1] = costs.back[model.node(order[at])];
    Prepare(Aim::kSum, costs.stages[order[at]], row, n_points, &least);
    BestStages(Aim::kSum, model, order[at], costs.stages[order[at]], least, &from[at * n_points]);
  }
  pieces->clear();
  double total = kNever;
  for (size_t at = 0, point = 0; point + 1 < n_points;) {
    size_t next = n;
    double cheapest = kNever;
    for (size_t later = at; later < n; ++later) {
      const double hop = pieces->empty() ? costs.in[order[later]] : hop_to(at - 1, later);
      const double cost = hop + from[later * n_points + point];
      if (cost < cheapest) {
        cheapest = cost;
        next = later;
      }
    }
    if (next == n) {
      pieces->clear();
      return kNever;
    }
    if (pieces->empty()) total = cheapest;
    const size_t c = order[next];
    const double* row = &after[next * n_points];
    const std::vector<uint32_t>& windows = model.windows_at(c);
    size_t best = point;
    cheapest = kNever;
    for (size_t i = windows[point]; i < windows[point + 1]; ++i) {
      const Window& window = model.windows(c)[i];
      for (size_t end = window.first; end <= window.last; ++end) {
        const double cost = costs.stages[c].Of(point, end) + row[end];
        if (cost < cheapest) {
          cheapest = cost;
          best = end;
        }
      }
    }
    pieces->push_back({c, point, best});
    at = next + 1;
    point = best;
  }
  return total;
}

}  // namespace strata
