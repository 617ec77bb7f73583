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

const EventQueue::Event& EventQueue::Top() { return TopIsNear() ? present_.back() : far_.top(); }

void EventQueue::Pop() {
  last_us_ = Top().at_us;
  if (TopIsNear()) {
    present_.pop_back();
    --near_;
  } else {
    far_.pop();
  }
}

}  // namespace strata
