#include "tests/sim/event_queue.h"

#include <algorithm>

namespace strata {

void EventQueue::Push(const Event& event) {
  const int64_t bucket = event.at_us / kBucketUs;
  if (near_ == 0) now_ = std::max(now_, last_us_ / kBucketUs);
  if (bucket >= now_ + kBuckets) {
    far_.push(event);
    return;
  }
  ++near_;
  if (bucket > now_) {
    BucketOf(bucket).push_back(event);
  } else {
    present_.insert(std::upper_bound(present_.begin(), present_.end(), event, std::greater<>()),
                    event);
  }
}

bool EventQueue::TopIsNear() {
  if (near_ == 0) return false;
  while (present_.empty()) {
    present_.swap(BucketOf(++now_));
    std::sort(present_.begin(), present_.end(), std::greater<>());
  }
  return far_.empty() || far_.top() > present_.back();
}

std::optional<EventQueue::Event> EventQueue::PopUntil(int64_t at_us) {
  if (empty()) return std::nullopt;
  const bool near = TopIsNear();
  const Event event = near ? present_.back() : far_.top();
  if (event.at_us > at_us) return std::nullopt;
  last_us_ = event.at_us;
  if (near) {
    present_.pop_back();
    --near_;
  } else {
    far_.pop();
  }
  return event;
}

}  // namespace strata
