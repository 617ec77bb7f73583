// A bounded queue between two threads, so that reading and writing weights overlap with their
// transfer over the network.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace strata {

// Thread-safe. One thread pushes, one pops.
template <typename T>
class WeightQueue {
 public:
  explicit WeightQueue(size_t size_max) : size_max_(size_max) {}

  // Waits for room. False: closed, the item is lost.
  bool Push(T item) {
    absl::MutexLock lock(mu_);
    const auto room = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return closed_ || items_.size() < size_max_;
    };
    mu_.Await(absl::Condition(&room));
    if (closed_) return false;
    items_.push_back(std::move(item));
    return true;
  }

  // Waits for an item. nullopt: closed, and all items were taken.
  std::optional<T> Pop() {
    absl::MutexLock lock(mu_);
    const auto there = [this]()
                           ABSL_SHARED_LOCKS_REQUIRED(mu_) { return closed_ || !items_.empty(); };
    mu_.Await(absl::Condition(&there));
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  // No more items; later calls do nothing.
  void Close() {
    absl::MutexLock lock(mu_);
    closed_ = true;
  }

 private:
  const size_t size_max_;
  absl::Mutex mu_;
  std::deque<T> items_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace strata
