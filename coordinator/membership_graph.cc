#include "coordinator/membership_graph.h"

namespace strata {

bool IndexSet::Empty() const {
  for (const uint64_t word : words_) {
    if (word != 0) return false;
  }
  return true;
}

size_t IndexSet::Count() const {
  size_t n = 0;
  for (const uint64_t word : words_) n += static_cast<size_t>(std::popcount(word));
  return n;
}

size_t IndexSet::CountMissing(const IndexSet& other) const {
  size_t n = 0;
  for (size_t w = 0; w < words_.size(); ++w) {
    n += static_cast<size_t>(std::popcount(other.words_[w] & ~words_[w]));
  }
  return n;
}

bool IndexSet::Contains(const IndexSet& other) const {
  for (size_t w = 0; w < words_.size(); ++w) {
    if ((other.words_[w] & ~words_[w]) != 0) return false;
  }
  return true;
}

ReachGraph::ReachGraph(size_t nodes_max) : nodes_max_(nodes_max) {}

size_t ReachGraph::Add(const NodeId& id) {
  const auto found = index_.find(id);
  if (found != index_.end()) return found->second;
  size_t i = ids_.size();
  if (!free_.empty()) {
    i = free_.back();
    free_.pop_back();
    ids_[i] = id;
  } else if (i < nodes_max_) {
    ids_.push_back(id);
    reaches_.emplace_back(nodes_max_);
    linked_.emplace_back(nodes_max_);
  } else {
    return kNone;
  }
  reaches_[i].Set(i, true);
  linked_[i].Set(i, true);
  index_[id] = i;
  return i;
}

size_t ReachGraph::Find(const NodeId& id) const {
  const auto found = index_.find(id);
  return found == index_.end() ? kNone : found->second;
}

void ReachGraph::Forget(size_t i) {
  for (size_t other = 0; other < ids_.size(); ++other) {
    reaches_[other].Set(i, false);
    linked_[other].Set(i, false);
  }
  reaches_[i].Clear();
  linked_[i].Clear();
  index_.erase(ids_[i]);
  ids_[i] = NodeId();
  free_.push_back(i);
}

bool ReachGraph::SetReaches(size_t from, size_t to, bool reaches) {
  if (from == to || reaches_[from].Has(to) == reaches) return false;
  reaches_[from].Set(to, reaches);
  Relink(from, to);
  return true;
}

void ReachGraph::SetReaches(size_t from, const IndexSet& to) {
  reaches_[from] = to;
  reaches_[from].Set(from, true);
  for (size_t other = 0; other < ids_.size(); ++other) {
    if (other != from) Relink(from, other);
  }
}

bool ReachGraph::AllLinked(const IndexSet& a, const IndexSet& b) const {
  bool all = true;
  a.ForEach([&](size_t i) { all = all && linked_[i].Contains(b); });
  return all;
}

void ReachGraph::Relink(size_t a, size_t b) {
  const bool linked = reaches_[a].Has(b) && reaches_[b].Has(a);
  linked_[a].Set(b, linked);
  linked_[b].Set(a, linked);
}

}  // namespace strata
