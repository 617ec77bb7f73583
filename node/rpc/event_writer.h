// Writes a long call's events to its client, on a thread of its own: a client that does not read
// delays its own call's end and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace strata {

// Events that wait for a client; beyond that the oldest are dropped.
inline constexpr size_t kEventsPendingMax = 256;

// Thread-safe, but for Finish().
template <typename Event>
class EventWriter {
 public:
  // `write` blocks while the client does not read, and returns false once the client has gone.
  explicit EventWriter(absl::AnyInvocable<bool(const Event&)> write)
      : write_(std::move(write)), thread_([this] { Run(); }) {}
  ~EventWriter() { Finish(); }

  // Does not block. Replaces a pending event with the same `key`. False: the client has gone.
  bool Write(Event event, std::optional<uint32_t> key = std::nullopt) {
    absl::MutexLock lock(mu_);
    if (gone_) return false;
    if (key) std::erase_if(pending_, [&](const Pending& other) { return other.key == key; });
    if (pending_.size() == kEventsPendingMax) pending_.pop_front();
    pending_.push_back({key, std::move(event)});
    return true;
  }

  // Blocks until all events are written, or the client has gone. REQUIRES: no Write() follows. Any
  // number of times.
  void Finish() {
    if (!thread_.joinable()) return;
    {
      absl::MutexLock lock(mu_);
      finished_ = true;
    }
    thread_.join();
  }

 private:
  struct Pending {
    std::optional<uint32_t> key;
    Event event;
  };

  void Run() {
    while (true) {
      std::optional<Pending> next;
      {
        absl::MutexLock lock(mu_);
        const auto due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
          return finished_ || !pending_.empty();
        };
        mu_.Await(absl::Condition(&due));
        if (pending_.empty()) return;
        next = std::move(pending_.front());
        pending_.pop_front();
      }
      if (write_(next->event)) continue;
      absl::MutexLock lock(mu_);
      gone_ = true;
      return;
    }
  }

  absl::AnyInvocable<bool(const Event&)> write_;  // thread_
  absl::Mutex mu_;
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: the thread uses the other members
};

}  // namespace strata
