// What is due when, in a simulation: millions of events, nearly all of them due within
// milliseconds. Those wait in buckets of time, which are put in order when their time comes; the
// few that are far off wait in a heap. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <vector>

namespace strata {

class EventQueue {
 public:
  struct Event {
    int64_t at_us;
    uint64_t order;  // among those of one time
    uint32_t node;
    uint32_t message;
    bool operator>(const Event& other) const {
      return at_us != other.at_us ? at_us > other.at_us : order > other.order;
    }
  };

  bool empty() const { return near_ == 0 && far_.empty(); }
  // Not before the last event that was popped.
  void Push(const Event& event);
  // Takes the first one out, if there is one due by then.
  std::optional<Event> PopUntil(int64_t at_us);
  // One that is `ahead` after the first, if that is known already: to fetch what it needs in time.
  const Event* Upcoming(size_t ahead) const {
    return ahead < present_.size() ? &present_[present_.size() - 1 - ahead] : nullptr;
  }

 private:
  static constexpr int64_t kBucketUs = 128;
  static constexpr int64_t kBuckets = 256;

  // Whether the first one is the last of present_; else it is far_.top(). Not when empty.
  bool TopIsNear();
  std::vector<Event>& BucketOf(int64_t bucket) {
    return buckets_[static_cast<size_t>(bucket % kBuckets)];
  }

  std::vector<std::vector<Event>> buckets_{static_cast<size_t>(kBuckets)};
  int64_t last_us_ = 0;         // of the one popped last
  int64_t now_ = 0;             // the bucket whose events are in present_
  std::vector<Event> present_;  // the next one last; also what is pushed for before
  size_t near_ = 0;             // events in buckets_ and present_
  std::priority_queue<Event, std::vector<Event>, std::greater<>> far_;
};

}  // namespace strata
