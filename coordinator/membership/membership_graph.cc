#include "coordinator/membership/membership_graph.h"

#include <algorithm>

namespace strata {

bool IndexView::Empty() const {
  for (size_t w = 0; w < n_; ++w) {
    if (words_[w] != 0) return false;
  }
  return true;
}

size_t IndexView::Count() const {
  size_t n = 0;
  for (size_t w = 0; w < n_; ++w) n += static_cast<size_t>(std::popcount(words_[w]));
  return n;
}

size_t IndexView::CountMissing(IndexView other) const {
  size_t n = 0;
  for (size_t w = 0; w < n_; ++w) {
    n += static_cast<size_t>(std::popcount(other.words_[w] & ~words_[w]));
  }
  return n;
}

bool IndexView::Contains(IndexView other) const {
  for (size_t w = 0; w < n_; ++w) {
    if ((other.words_[w] & ~words_[w]) != 0) return false;
  }
  return true;
}

ReachGraph::ReachGraph(size_t nodes_max)
    : nodes_max_(nodes_max), row_((nodes_max + 63) / 64), slots_(16) {}

size_t ReachGraph::SlotOf(const NodeId& id) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = ((id.high ^ id.low * 0xbf58476d1ce4e5b9) * 0x9e3779b97f4a7c15) >> 32 & mask;
  while (slots_[slot] != 0 && ids_[slots_[slot] - 1] != id) slot = (slot + 1) & mask;
  return slot;
}

void ReachGraph::Reindex(size_t slots) {
  slots_.assign(slots, 0);
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (!ids_[i].is_nobody()) slots_[SlotOf(ids_[i])] = static_cast<uint32_t>(i + 1);
  }
}

size_t ReachGraph::Add(const NodeId& id) {
  const size_t found = Find(id);
  if (found != kNone) return found;
  size_t i = ids_.size();
  if (!free_.empty()) {
    i = free_.back();
    free_.pop_back();
    ids_[i] = id;
  } else if (i < nodes_max_) {
    ids_.push_back(id);
    reaches_.resize(ids_.size() * row_);
    linked_.resize(ids_.size() * row_);
  } else {
    return kNone;
  }
  by_id_.insert(std::ranges::lower_bound(by_id_, id, {}, [this](size_t k) { return ids_[k]; }), i);
  Set(&reaches_, i, i, true);
  Set(&linked_, i, i, true);
  if (2 * ids_.size() > slots_.size()) {
    Reindex(2 * slots_.size());
  } else {
    slots_[SlotOf(id)] = static_cast<uint32_t>(i + 1);
  }
  return i;
}

size_t ReachGraph::Find(const NodeId& id) const {
  const uint32_t number = slots_[SlotOf(id)];
  return number == 0 ? kNone : number - 1;
}

void ReachGraph::Forget(size_t i) {
  for (size_t other = 0; other < ids_.size(); ++other) {
    Set(&reaches_, other, i, false);
    Set(&linked_, other, i, false);
  }
  std::fill_n(reaches_.begin() + static_cast<ptrdiff_t>(i * row_), row_, 0);
  std::fill_n(linked_.begin() + static_cast<ptrdiff_t>(i * row_), row_, 0);
  std::erase(by_id_, i);
  ids_[i] = NodeId();
  Reindex(slots_.size());
  free_.push_back(i);
}

void ReachGraph::ReachesNobody(size_t from) {
  reaches(from).ForEach([&](size_t to) { SetReaches(from, to, false); });
}

bool ReachGraph::AllLinked(IndexView a, IndexView b) const {
  return a.AllOf([&](size_t i) { return linked(i).Contains(b); });
}

}  // namespace strata
