#include "coordinator/plan_labels.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace strata {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kLabelsMax = 4u << 20;  // at a time

// After a stage that ends at `end`.
struct Label {
  double cost = 0, priced = 0;
  uint32_t parent = kNone;
  uint32_t next = kNone;  // of the same place
  uint32_t begin = 0, end = 0;
  uint8_t candidate = 0;
};

class Labels {
 public:
  explicit Labels(const LabelSearch& search)
      : s_(search),
        model_(*search.model),
        n_(model_.n()),
        n_shared_(model_.shared().size()),
        all_((size_t{1} << n_) - 1),
        limit_(search.cost_limit),
        heads_((all_ + 1) * model_.n_nodes() * model_.n_points(), kNone),
        closed_(n_shared_, 0),
        takes_(n_shared_) {
    for (size_t i = 0; i < n_shared_; ++i) {
      for (const size_t c : model_.shared()[i].users) closed_[i] |= size_t{1} << c;
    }
  }

  LabelResult Run();

 private:
  bool Done() const { return is_over_ || (s_.any && result_.cost < kNever); }
  // A label's completions at these prices cost at least so much; as good as the best is no better.
  bool Hopeless(double priced) const { return !(priced < limit_ + s_.prices); }
  void Extend(uint32_t from, size_t used, size_t candidate);
  bool Room(uint32_t from, size_t candidate, size_t begin, size_t end);
  void Insert(Label label, size_t used);
  void Finish(const Label& label);
  uint32_t* Head(size_t used, size_t node, size_t point) {
    return &heads_[(used * model_.n_nodes() + node) * model_.n_points() + point];
  }

  const LabelSearch& s_;
  const StageModel& model_;
  const size_t n_, n_shared_, all_;
  double limit_;
  std::vector<Label> labels_;
  std::vector<double> taken_;  // [labels, shared]; 0 when all its users have their stages
  std::vector<uint32_t> heads_;
  std::vector<size_t> closed_;  // [shared], its users as bits
  std::vector<double> takes_;   // [shared], of the label that is being made
  bool is_over_ = false;
  LabelResult result_;
};

// Whether the shared things have room for that stage; `takes_` is what they have given then.
bool Labels::Room(uint32_t from, size_t candidate, size_t begin, size_t end) {
  for (size_t i = 0; i < n_shared_; ++i) {
    const Shared& shared = model_.shared()[i];
    takes_[i] = from == kNone ? 0 : taken_[from * n_shared_ + i];
    const Linear& stage = shared.takes[candidate];
    if (stage.before.empty()) continue;
    takes_[i] += stage.Of(begin, end);
    if (takes_[i] > shared.capacity) return false;
  }
  return true;
}

void Labels::Insert(Label label, size_t used) {
  for (size_t i = 0; i < n_shared_; ++i) {
    if ((closed_[i] & ~used) == 0) takes_[i] = 0;
  }
  // Whether `a` takes no more than `b` of anything.
  const auto no_more = [&](const double* a, const double* b) {
    for (size_t i = 0; i < n_shared_; ++i) {
      if (a[i] > b[i]) return false;
    }
    return true;
  };
  uint32_t* head = Head(used, model_.node(label.candidate), label.end);
  for (uint32_t* at = head; *at != kNone;) {
    Label& other = labels_[*at];
    const double* taken = &taken_[*at * n_shared_];
    result_.work += 1;
    if (other.cost <= label.cost && no_more(taken, takes_.data())) return;
    if (label.cost <= other.cost && no_more(takes_.data(), taken)) {
      *at = other.next;
    } else {
      at = &other.next;
    }
  }
  if (labels_.size() >= kLabelsMax) {
    is_over_ = true;
    return;
  }
  label.next = *head;
  *head = static_cast<uint32_t>(labels_.size());
  labels_.push_back(label);
  taken_.insert(taken_.end(), takes_.begin(), takes_.end());
}

void Labels::Finish(const Label& label) {
  limit_ = std::min(limit_, label.cost);
  result_.cost = label.cost;
  result_.pieces = {{label.candidate, label.begin, label.end}};
  for (uint32_t at = label.parent; at != kNone; at = labels_[at].parent) {
    const Label& each = labels_[at];
    result_.pieces.push_back({each.candidate, each.begin, each.end});
  }
  std::reverse(result_.pieces.begin(), result_.pieces.end());
}

// The stage of `candidate` comes next, with every end that may be worth it.
void Labels::Extend(uint32_t from, size_t used, size_t candidate) {
  Label base;
  double hop = s_.costs->in[candidate];
  if (from != kNone) {
    base = labels_[from];
    hop = s_.costs->hops[model_.node(base.candidate) * n_ + candidate];
  }
  result_.work += 1;
  const size_t begin = base.end;
  const size_t free = all_ & ~used;
  if (hop == kNever || Hopeless(base.priced + hop + s_.table->From(free, candidate, begin))) return;
  const Linear& cost = s_.costs->stages[candidate];
  const Linear& priced = s_.priced->stages[candidate];
  const size_t now = used | size_t{1} << candidate;
  const size_t node = model_.node(candidate);
  const std::vector<uint32_t>& windows = model_.windows_at(candidate);
  for (size_t i = windows[begin]; i < windows[begin + 1]; ++i) {
    const Window& window = model_.windows(candidate)[i];
    result_.work += window.last - window.first;
    for (size_t end = window.first; end <= window.last; ++end) {
      Label label;
      label.priced = base.priced + hop + priced.Of(begin, end);
      if (Hopeless(label.priced + s_.table->After(all_ & ~now, node, end))) continue;
      if (!Room(from, candidate, begin, end)) break;
      label.cost = base.cost + hop + cost.Of(begin, end);
      label.parent = from;
      label.begin = static_cast<uint32_t>(begin);
      label.end = static_cast<uint32_t>(end);
      label.candidate = static_cast<uint8_t>(candidate);
      if (end == model_.last_point()) {
        label.cost += s_.costs->back[node];
        if (label.cost < limit_) Finish(label);
      } else {
        Insert(label, now);
      }
      if (Done()) return;
    }
  }
}

LabelResult Labels::Run() {
  const auto extend_all = [&](uint32_t from, size_t used) {
    for (size_t c = 0; c < n_; ++c) {
      // Of candidates that are alike, the first goes first.
      if ((used >> c & 1) != 0 || (model_.twins_before(c) & ~used) != 0) continue;
      Extend(from, used, c);
      if (Done() || result_.work > s_.work_max) return false;
    }
    return true;
  };
  bool all = extend_all(kNone, 0);
  for (size_t used = 1; used <= all_ && all; ++used) {
    for (size_t node = 0; node < model_.n_nodes(); ++node) {
      for (size_t point = 1; point < model_.last_point(); ++point) {
        for (uint32_t at = *Head(used, node, point); at != kNone && all; at = labels_[at].next) {
          all = extend_all(at, used);
        }
      }
    }
  }
  result_.is_complete = all;
  return std::move(result_);
}

}  // namespace

LabelResult FindCheapest(const LabelSearch& search) { return Labels(search).Run(); }

}  // namespace strata
