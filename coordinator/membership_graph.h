// Who reaches whom, as far as one node knows: ids with small numbers, and a square of bits over
// them. Part of membership.h; loop thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "coordinator/membership_types.h"

namespace strata {

// A set of small numbers below a bound.
class IndexSet {
 public:
  explicit IndexSet(size_t bound = 0) : words_((bound + 63) / 64) {}

  // Rounded up.
  size_t bound() const { return words_.size() * 64; }
  bool Has(size_t i) const { return (words_[i / 64] >> (i % 64) & 1) != 0; }
  void Set(size_t i, bool in) {
    const uint64_t bit = uint64_t{1} << (i % 64);
    words_[i / 64] = in ? words_[i / 64] | bit : words_[i / 64] & ~bit;
  }
  void Clear() { words_.assign(words_.size(), 0); }
  bool Empty() const;
  size_t Count() const;
  // Of `other` that are not in this one.
  size_t CountMissing(const IndexSet& other) const;
  bool Contains(const IndexSet& other) const;

  // Calls f(i) in rising order. The set may lose `i` meanwhile, nothing else.
  template <typename F>
  void ForEach(F f) const {
    for (size_t w = 0; w < words_.size(); ++w) {
      for (uint64_t rest = words_[w]; rest != 0; rest &= rest - 1) {
        f(w * 64 + static_cast<size_t>(std::countr_zero(rest)));
      }
    }
  }

  friend bool operator==(const IndexSet&, const IndexSet&) = default;

 private:
  std::vector<uint64_t> words_;
};

class ReachGraph {
 public:
  static constexpr size_t kNone = SIZE_MAX;

  explicit ReachGraph(size_t nodes_max);

  // Numbers are given in order, the first is 0, and reused after Forget. kNone when all are taken.
  size_t Add(const NodeId& id);
  size_t Find(const NodeId& id) const;
  void Forget(size_t i);
  // One past the greatest number given.
  size_t bound() const { return ids_.size(); }
  const NodeId& id(size_t i) const { return ids_[i]; }  // nobody: a number that is free
  size_t nodes_max() const { return nodes_max_; }

  // Returns whether that is new.
  bool SetReaches(size_t from, size_t to, bool reaches);
  void SetReaches(size_t from, const IndexSet& to);
  const IndexSet& reaches(size_t from) const { return reaches_[from]; }

  // Each reaches the other. A node is linked with itself.
  const IndexSet& linked(size_t i) const { return linked_[i]; }
  bool Linked(size_t a, size_t b) const { return linked_[a].Has(b); }
  // Whether every node of `a` is linked with every one of `b`.
  bool AllLinked(const IndexSet& a, const IndexSet& b) const;

 private:
  void Relink(size_t a, size_t b);

  const size_t nodes_max_;
  std::vector<NodeId> ids_;
  std::vector<size_t> free_;
  std::map<NodeId, size_t> index_;
  std::vector<IndexSet> reaches_;  // [from] → to
  std::vector<IndexSet> linked_;
};

}  // namespace strata
