#include "coordinator/plan_table.h"

#include <algorithm>
#include <bit>

namespace strata {
namespace {

// What a stage costs that begins at each point, with the best of its ends; `least` has what is left
// to pay after each end, for kSum with what the stage paid until there.
void BestStages(Aim aim, const StageModel& model, size_t candidate, const Linear& stage,
                const RangeMin& least, double* from) {
  const double* before = stage.before.data();
  for (const Window& window : model.windows(candidate)) {
    double best = kNever;
    const double offset = stage.fixed - before[window.begin];
    if (aim == Aim::kSum) {
      best = offset + least.Least(window.first, window.last);
    } else {
      // The longer, the dearer, and the less is left: the best is where the two meet.
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

SubsetTable::SubsetTable(size_t n, size_t n_nodes, size_t n_points)
    : n_(n),
      n_nodes_(n_nodes),
      n_points_(n_points),
      members_(n_nodes),
      after_((size_t{1} << n) * n_nodes * n_points),
      from_((size_t{1} << n) * n * n_points),
      reached_((size_t{1} << n) * n),
      least_(n_points) {}

void SubsetTable::FillFrom(size_t free, size_t candidate) {
  const size_t left = free & ~(size_t{1} << candidate);
  double* from = &from_[(free * n_ + candidate) * n_points_];
  std::fill(from, from + n_points_, kNever);
  const Linear& stage = costs_->stages[candidate];
  Prepare(aim_, stage, &after_[(left * n_nodes_ + model_->node(candidate)) * n_points_], n_points_,
          &least_);
  BestStages(aim_, *model_, candidate, stage, least_, from);
  size_t reached = 0;
  while (reached < n_points_ && from[reached] == kNever) ++reached;
  reached_[free * n_ + candidate] = static_cast<uint32_t>(reached);
}

void SubsetTable::FillAfter(size_t free, size_t node) {
  double* after = &after_[(free * n_nodes_ + node) * n_points_];
  std::fill(after, after + n_points_, kNever);
  for (size_t c = 0; c < n_; ++c) {
    if ((free >> c & 1) == 0) continue;
    const double hop = costs_->hops[node * n_ + c];
    if (hop == kNever) continue;
    const double* from = &from_[(free * n_ + c) * n_points_];
    const size_t begin = reached_[free * n_ + c];
    if (aim_ == Aim::kSum) {
      for (size_t p = begin; p < n_points_; ++p) {
        const double cost = hop + from[p];
        after[p] = cost < after[p] ? cost : after[p];
      }
    } else {
      for (size_t p = begin; p < n_points_; ++p) {
        const double cost = hop < from[p] ? from[p] : hop;
        after[p] = cost < after[p] ? cost : after[p];
      }
    }
  }
  after[n_points_ - 1] = costs_->back[node];
}

double SubsetTable::Fill(Aim aim, const StageModel& model, const PathCosts& costs) {
  aim_ = aim;
  model_ = &model;
  costs_ = &costs;
  std::fill(members_.begin(), members_.end(), size_t{0});
  for (size_t c = 0; c < n_; ++c) members_[model.node(c)] |= size_t{1} << c;
  const size_t all = (size_t{1} << n_) - 1;
  for (size_t free = 0; free <= all; ++free) {
    for (size_t c = 0; c < n_; ++c) {
      if ((free >> c & 1) != 0) FillFrom(free, c);
    }
    for (size_t node = 0; node < n_nodes_; ++node) {
      if ((members_[node] & ~free) != 0) FillAfter(free, node);
    }
  }
  double best = kNever;
  for (size_t c = 0; c < n_; ++c) best = std::min(best, Join(aim, costs.in[c], From(all, c, 0)));
  return best;
}

size_t SubsetTable::BestEnd(size_t free, size_t candidate, size_t begin) const {
  const size_t left = free & ~(size_t{1} << candidate);
  const std::vector<uint32_t>& at = model_->windows_at(candidate);
  size_t best = begin;
  double least = kNever;
  for (size_t i = at[begin]; i < at[begin + 1]; ++i) {
    const Window& window = model_->windows(candidate)[i];
    for (size_t end = window.first; end <= window.last; ++end) {
      const double cost = Join(aim_, costs_->stages[candidate].Of(begin, end),
                               After(left, model_->node(candidate), end));
      if (cost < least) {
        least = cost;
        best = end;
      }
    }
  }
  return best;
}

Pieces SubsetTable::Path() const {
  Pieces pieces;
  size_t free = (size_t{1} << n_) - 1;
  for (size_t point = 0; point + 1 < n_points_;) {
    size_t next = n_;
    double least = kNever;
    for (size_t c = 0; c < n_; ++c) {
      if ((free >> c & 1) == 0) continue;
      const double hop = pieces.empty()
                             ? costs_->in[c]
                             : costs_->hops[model_->node(pieces.back().candidate) * n_ + c];
      const double cost = Join(aim_, hop, From(free, c, point));
      if (cost < least) {
        least = cost;
        next = c;
      }
    }
    if (next == n_) return {};
    const size_t end = BestEnd(free, next, point);
    pieces.push_back({next, point, end});
    free &= ~(size_t{1} << next);
    point = end;
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
