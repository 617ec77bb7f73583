#include "coordinator/planner/exact/labels.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace strata {
namespace {

constexpr uint32_t kNoLabel = UINT32_MAX;
constexpr size_t kLabelsMax = 4u << 20;

// After a visit to a group, at `entry`, with all layers before `point` done.
struct Label {
  double cost = 0;
  double priced = 0;  // with the prices of single candidates and the debt of partly used groups
  uint32_t parent = kNoLabel;
  uint32_t next = kNoLabel;  // in the same list
  uint32_t free = 0;         // candidates
  uint32_t point = 0;
  uint32_t entry = kNoLabel;
  uint32_t in = 0;            // entry of the visit
  uint32_t visit = kNoLabel;  // in visits_; kNoLabel: the cheapest one, its group's only visit
};

class Labels {
 public:
  explicit Labels(const LabelSearch& search)
      : s_(search),
        model_(*search.model),
        groups_(*search.groups),
        n_(model_.n()),
        n_shared_(model_.shared().size()),
        n_taken_(n_shared_ + groups_.list.size()),
        all_((size_t{1} << n_) - 1),
        limit_(search.cost_limit),
        heads_((all_ + 1) * groups_.entries.size() * model_.n_points(), kNoLabel),
        users_(n_shared_, 0),
        taken_(n_taken_, 0.0) {
    for (size_t i = 0; i < n_shared_; ++i) {
      for (const size_t c : model_.shared()[i].users) users_[i] |= size_t{1} << c;
    }
    for (size_t g = 0; g < groups_.list.size(); ++g) {
      finders_.emplace_back(model_, groups_, g, /*strict=*/true);
    }
  }

  LabelResult Run();

 private:
  bool Done() const {
    return is_over_ || result_.work > s_.work_max || (s_.any && result_.cost < kNever);
  }
  // Whether completions, which cost at least `priced`, cannot beat the best. Equal is no better.
  bool Hopeless(double priced) const { return !(priced < limit_ + s_.prices); }
  bool Hopeless(const Label& label) const {
    return Hopeless(label.priced + s_.table->After(label.free, label.entry, label.point));
  }
  void Extend(uint32_t from);
  // Each extends `base`, at whose entry the stage begins; `taken_` is the use of `base`.
  void AddSingle(const Label& base, size_t from_point, size_t candidate);
  void AddOnce(const Label& base, size_t from_point, size_t group);
  void AddAgain(const Label& base, size_t from_point, size_t group);
  void Add(Label label);
  void Finish(const Label& label);
  Pieces VisitOf(const Label& label) const;

  const LabelSearch& s_;
  const StageModel& model_;
  const Groups& groups_;
  const size_t n_, n_shared_, n_taken_, all_;
  double limit_;
  std::vector<VisitFinder> finders_;  // [groups]
  std::vector<Label> labels_;
  // [labels, shared and groups], use of the free candidates' shared resources; debts of groups.
  std::vector<double> all_taken_;
  std::vector<Pieces> visits_;
  std::vector<uint32_t> heads_;  // [sets, entries, points]
  std::vector<size_t> users_;    // [shared], as bits
  std::vector<double> taken_;    // of the label that is being made
  bool is_over_ = false;
  LabelResult result_;
};

void Labels::Add(Label label) {
  if (label.point == model_.last_point()) {
    label.cost += s_.costs->back[model_.node(groups_.entries[label.entry].candidate)];
    if (label.cost < limit_) Finish(label);
    return;
  }
  const std::vector<double> before = taken_;
  for (size_t i = 0; i < n_shared_; ++i) {
    if ((users_[i] & label.free) == 0) taken_[i] = 0;
  }
  for (size_t g = 0; g < groups_.list.size(); ++g) {
    if (groups_.PartlyFree(g, label.free)) continue;
    for (const size_t i : groups_.list[g].shared) taken_[i] = 0;
  }
  // Whether `a` uses no more than `b` of any resource.
  const auto no_more = [&](const double* a, const double* b) {
    for (size_t i = 0; i < n_shared_; ++i) {
      if (a[i] > b[i]) return false;
    }
    return true;
  };
  uint32_t* head = &heads_[(label.free * groups_.entries.size() + label.entry) * model_.n_points() +
                           label.point];
  bool is_worse = false;
  for (uint32_t* at = head; *at != kNoLabel && !is_worse;) {
    Label& other = labels_[*at];
    const double* taken = &all_taken_[*at * n_taken_];
    result_.work += 1;
    is_worse = other.cost <= label.cost && no_more(taken, taken_.data());
    if (!is_worse && label.cost <= other.cost && no_more(taken_.data(), taken)) {
      *at = other.next;
    } else {
      at = &other.next;
    }
  }
  if (!is_worse) {
    is_over_ = labels_.size() >= kLabelsMax;
    label.next = *head;
    *head = static_cast<uint32_t>(labels_.size());
    labels_.push_back(label);
    all_taken_.insert(all_taken_.end(), taken_.begin(), taken_.end());
  }
  taken_ = before;
}

Pieces Labels::VisitOf(const Label& label) const {
  if (label.visit != kNoLabel) return visits_[label.visit];
  const size_t g = groups_.entries[label.entry].group;
  const Group& group = groups_.list[g];
  const size_t begin = label.parent == kNoLabel ? 0 : labels_[label.parent].point;
  VisitFinder finder(model_, groups_, g, group.members.size() > 1);
  finder.Run(*s_.costs, begin, group.bits, std::vector<double>(group.shared.size(), 0.0));
  Pieces pieces;
  double least = kNever;
  for (size_t i = 0; i < finder.paths().size(); ++i) {
    const VisitPath& path = finder.paths()[i];
    if (!finder.Alive(i) || path.end != label.point || groups_.entry_of[path.first] != label.in ||
        groups_.entry_of[path.last] != label.entry || path.cost >= least) {
      continue;
    }
    least = path.cost;
    pieces = finder.PiecesOf(i);
  }
  return pieces;
}

void Labels::Finish(const Label& label) {
  limit_ = std::min(limit_, label.cost);
  result_.cost = label.cost;
  std::vector<Pieces> visits = {VisitOf(label)};
  for (uint32_t at = label.parent; at != kNoLabel; at = labels_[at].parent) {
    if (labels_[at].point > 0) visits.push_back(VisitOf(labels_[at]));
  }
  result_.pieces.clear();
  for (size_t i = visits.size(); i-- > 0;) {
    result_.pieces.insert(result_.pieces.end(), visits[i].begin(), visits[i].end());
  }
}

void Labels::AddSingle(const Label& base, size_t begin, size_t candidate) {
  const Linear& cost = s_.costs->stages[candidate];
  const Linear& priced = s_.priced->stages[candidate];
  const std::vector<uint32_t>& windows = model_.windows_at(candidate);
  const std::vector<double> before = taken_;
  for (size_t i = windows[begin]; i < windows[begin + 1]; ++i) {
    const Window& window = model_.windows(candidate)[i];
    result_.work += window.last - window.first;
    for (size_t end = window.first; end <= window.last && !Done(); ++end) {
      Label label = base;
      label.free &= ~(uint32_t{1} << candidate);
      label.point = static_cast<uint32_t>(end);
      label.priced += priced.Of(begin, end);
      if (Hopeless(label)) continue;
      bool has_room = true;
      for (size_t k = 0; k < n_shared_; ++k) {
        const Shared& shared = model_.shared()[k];
        if (shared.takes[candidate].before.empty()) continue;
        taken_[k] = before[k] + shared.takes[candidate].Of(begin, end);
        has_room = has_room && taken_[k] <= shared.capacity;
      }
      label.cost += cost.Of(begin, end);
      if (has_room) Add(label);
      taken_ = before;
      if (!has_room) return;
    }
  }
}

void Labels::AddOnce(const Label& base, size_t begin, size_t g) {
  const Group& group = groups_.list[g];
  bool is_worth_it = false;
  const auto after = [&](size_t out, size_t end, double cost) {
    Label label = base;
    label.free &= ~static_cast<uint32_t>(group.bits);
    label.point = static_cast<uint32_t>(end);
    label.entry = static_cast<uint32_t>(out);
    label.cost += cost;
    label.priced += cost;
    return label;
  };
  for (const VisitBlock& block : s_.table->Once(g)) {
    if (block.in != base.in) continue;
    for (size_t end = begin + 1; end < model_.n_points() && !Done(); ++end) {
      result_.work += 1;
      const double cost = block.costs[end * model_.n_points() + begin];
      if (cost == kNever) continue;
      const Label label = after(block.out, end, cost);
      if (Hopeless(label)) continue;
      is_worth_it = true;
      if (group.members.size() == 2) Add(label);
    }
  }
  if (!is_worth_it || group.members.size() == 2) return;
  VisitFinder& finder = finders_[g];
  finder.Run(*s_.costs, begin, group.bits, std::vector<double>(group.shared.size(), 0.0));
  result_.work += finder.work();
  for (size_t at = 0; at < finder.paths().size() && !Done(); ++at) {
    const VisitPath& path = finder.paths()[at];
    if (!finder.Alive(at) || groups_.entry_of[path.first] != base.in) continue;
    Label label = after(groups_.entry_of[path.last], path.end, path.cost);
    if (Hopeless(label)) continue;
    label.visit = static_cast<uint32_t>(visits_.size());
    visits_.push_back(finder.PiecesOf(at));
    Add(label);
  }
}

void Labels::AddAgain(const Label& base, size_t begin, size_t g) {
  const Group& group = groups_.list[g];
  const std::vector<double> before = taken_;
  const bool is_first = groups_.AllFree(g, base.free);
  if (!group.may_split && is_first && begin > 0) return;
  std::vector<double> taken;
  for (const size_t i : group.shared) taken.push_back(is_first ? 0 : before[i]);
  double* owed = &taken_[n_shared_ + g];
  const double owed_before = is_first ? 0 : before[n_shared_ + g];
  VisitFinder& finder = finders_[g];
  finder.Run(*s_.costs, begin, base.free, taken);
  result_.work += finder.work();
  for (size_t at = 0; at < finder.paths().size() && !Done(); ++at) {
    const VisitPath& path = finder.paths()[at];
    if (!finder.Alive(at) || groups_.entry_of[path.first] != base.in) continue;
    const size_t set = finder.Bits(path);
    const size_t rest = base.free & group.bits & ~set;
    if (is_first && rest == 0) continue;  // that is its only visit
    if (!group.may_split && !is_first && path.end != model_.last_point()) continue;
    const Pieces pieces = finder.PiecesOf(at);
    double prices = is_first ? -s_.table->Credit(g) : 0;
    for (const Piece& piece : pieces) {
      prices += s_.priced->stages[piece.candidate].Of(piece.begin, piece.end) -
                s_.costs->stages[piece.candidate].Of(piece.begin, piece.end);
    }
    Label label = base;
    label.point = path.end;
    label.entry = static_cast<uint32_t>(groups_.entry_of[path.last]);
    label.cost += path.cost;
    label.visit = static_cast<uint32_t>(visits_.size());
    for (size_t k = 0; k < group.shared.size(); ++k) taken_[group.shared[k]] = path.taken[k];
    const auto offer = [&](size_t gone, double owes) {
      label.free = base.free & ~static_cast<uint32_t>(gone);
      label.priced = base.priced + path.cost + owes - owed_before;
      *owed = owes;
      if (Hopeless(label)) return;
      if (label.visit == visits_.size()) visits_.push_back(pieces);
      Add(label);
    };
    if (rest != 0) offer(set, owed_before + prices);
    if (!is_first) offer(group.bits, 0);
    taken_ = before;
  }
}

void Labels::Extend(uint32_t from) {
  const Label parent = labels_[from];
  const size_t begin = parent.point;
  for (size_t entry = 0; entry < groups_.entries.size() && !Done(); ++entry) {
    const Entry& each = groups_.entries[entry];
    const Group& group = groups_.list[each.group];
    if ((group.bits & parent.free) == 0) continue;
    double hop = s_.costs->in[each.candidate];
    if (parent.entry != kNoLabel) {
      const Entry& at = groups_.entries[parent.entry];
      if (at.group == each.group) continue;
      hop = s_.costs->hops[model_.node(at.candidate) * n_ + each.candidate];
    }
    result_.work += 1;
    if (Hopeless(parent.priced + hop + s_.table->From(parent.free, entry, begin))) continue;
    Label base = parent;
    base.parent = from;
    base.cost += hop;
    base.priced += hop;
    base.in = base.entry = static_cast<uint32_t>(entry);
    base.visit = kNoLabel;
    const double* taken = &all_taken_[from * n_taken_];
    taken_.assign(taken, taken + n_taken_);
    if (group.members.size() == 1) {
      // Of equal candidates, the first is used first.
      if ((model_.twins_before(each.candidate) & parent.free) != 0) continue;
      AddSingle(base, begin, each.candidate);
      continue;
    }
    if (groups_.AllFree(each.group, parent.free)) AddOnce(base, begin, each.group);
    if (!Hopeless(base.priced + s_.table->Again(parent.free, entry, begin))) {
      AddAgain(base, begin, each.group);
    }
  }
}

LabelResult Labels::Run() {
  Label root;
  root.free = static_cast<uint32_t>(all_);
  labels_.push_back(root);
  all_taken_.assign(n_taken_, 0.0);
  Extend(0);
  for (size_t free = all_; free-- > 0 && !Done();) {
    for (size_t entry = 0; entry < groups_.entries.size(); ++entry) {
      if (groups_.AllFree(groups_.entries[entry].group, free)) continue;
      uint32_t* head = &heads_[(free * groups_.entries.size() + entry) * model_.n_points()];
      for (size_t point = 1; point < model_.last_point(); ++point) {
        for (uint32_t at = head[point]; at != kNoLabel && !Done(); at = labels_[at].next)
          Extend(at);
      }
    }
  }
  result_.is_complete = !is_over_ && result_.work <= s_.work_max;
  return std::move(result_);
}

}  // namespace

LabelResult FindCheapest(const LabelSearch& search) { return Labels(search).Run(); }

}  // namespace strata
