// The reach graph as one node knows it: ids with small numbers, and a square of bits over them.
// Part of membership.h; loop thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "coordinator/membership/membership_types.h"

namespace strata {

// A view of a set of small numbers, valid as long as its owner says.
class IndexView {
 public:
  // `words` are `n`.
  IndexView(const uint64_t* words, size_t n) : words_(words), n_(n) {}

  bool Has(size_t i) const { return (words_[i / 64] >> (i % 64) & 1) != 0; }
  bool Empty() const;
  size_t Count() const;
  // The number of elements of `other`, which has the same bound, that are not in this set.
  size_t CountMissing(IndexView other) const;
  bool Contains(IndexView other) const;

  // Calls f(i) in rising order. `f` may remove `i` from the set, and nothing else.
  template <typename F>
  void ForEach(F f) const {
    for (size_t w = 0; w < n_; ++w) {
      for (uint64_t rest = words_[w]; rest != 0; rest &= rest - 1) {
        f(w * 64 + static_cast<size_t>(std::countr_zero(rest)));
      }
    }
  }
  // Whether f(i) is true for each, called in rising order until it is not.
  template <typename F>
  bool AllOf(F f) const {
    for (size_t w = 0; w < n_; ++w) {
      for (uint64_t rest = words_[w]; rest != 0; rest &= rest - 1) {
        if (!f(w * 64 + static_cast<size_t>(std::countr_zero(rest)))) return false;
      }
    }
    return true;
  }
  // Calls f(i) for each element that is not in `other`, in rising order from `begin` on and then
  // from 0, until `f` returns false. Returns whether it never did.
  template <typename F>
  bool ForEachMissing(IndexView other, size_t begin, F f) const {
    const uint64_t from_begin = ~uint64_t{0} << (begin % 64);
    for (size_t k = 0, w = begin / 64; k <= n_; ++k, w = w + 1 < n_ ? w + 1 : 0) {
      uint64_t rest = words_[w] & ~other.words_[w];
      if (k == 0) rest &= from_begin;
      if (k == n_) rest &= ~from_begin;
      for (; rest != 0; rest &= rest - 1) {
        if (!f(w * 64 + static_cast<size_t>(std::countr_zero(rest)))) return false;
      }
    }
    return true;
  }

 private:
  const uint64_t* words_;
  size_t n_;
};

// A set of small numbers below a bound.
class IndexSet {
 public:
  explicit IndexSet(size_t bound = 0) : words_((bound + 63) / 64) {}
  // NOLINTNEXTLINE(google-explicit-constructor): readers take either type.
  operator IndexView() const { return view(); }
  IndexView view() const { return {words_.data(), words_.size()}; }

  // Rounded up.
  size_t bound() const { return words_.size() * 64; }
  void Set(size_t i, bool in) {
    const uint64_t bit = uint64_t{1} << (i % 64);
    words_[i / 64] = in ? words_[i / 64] | bit : words_[i / 64] & ~bit;
  }
  void Clear() { words_.assign(words_.size(), 0); }

  bool Has(size_t i) const { return view().Has(i); }
  bool Empty() const { return view().Empty(); }
  size_t Count() const { return view().Count(); }
  template <typename F>
  void ForEach(F f) const {
    view().ForEach(std::move(f));
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
  // The numbers given, in order of their ids. Valid until the next Add() or Forget().
  const std::vector<size_t>& by_id() const { return by_id_; }
  size_t nodes_max() const { return nodes_max_; }

  // Returns whether that changed anything.
  bool SetReaches(size_t from, size_t to, bool reaches) {
    if (from == to || this->reaches(from).Has(to) == reaches) return false;
    Set(&reaches_, from, to, reaches);
    if (this->reaches(to).Has(from)) {
      Set(&linked_, from, to, reaches);
      Set(&linked_, to, from, reaches);
    }
    return true;
  }
  void ReachesNobody(size_t from);
  // Valid until the next Add().
  IndexView reaches(size_t from) const { return {reaches_.data() + from * row_, row_}; }

  // Each reaches the other. A node is linked with itself. Valid until the next Add().
  IndexView linked(size_t i) const { return {linked_.data() + i * row_, row_}; }
  bool Linked(size_t a, size_t b) const { return linked(a).Has(b); }
  // Whether every node of `a` is linked with every one of `b`.
  bool AllLinked(IndexView a, IndexView b) const;

 private:
  using Rows = std::vector<uint64_t>;  // of row_ words for each number
  void Set(Rows* rows, size_t from, size_t to, bool in) const {
    uint64_t& word = (*rows)[from * row_ + to / 64];
    const uint64_t bit = uint64_t{1} << (to % 64);
    word = in ? word | bit : word & ~bit;
  }
  // Where `id` is in slots_, or the free slot where it would be.
  size_t SlotOf(const NodeId& id) const;
  void Reindex(size_t slots);

  const size_t nodes_max_;
  const size_t row_;  // words
  std::vector<NodeId> ids_;
  std::vector<size_t> by_id_;
  std::vector<size_t> free_;
  // Open addressing, at most half full: a number plus 1, or 0. A power of two long. Looked up for
  // every heartbeat and every id in it.
  std::vector<uint32_t> slots_;
  Rows reaches_;  // [from] → to
  Rows linked_;
};

}  // namespace strata
