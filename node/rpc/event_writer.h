// Tells a long call's client how it goes, on a thread of its own: a client that does not read holds
// up its own call's end and nothing else.
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

// Events that wait for a client; more, and the oldest go.
inline constexpr size_t kEventsPendingMax = 256;

// Thread-safe, but for Finish().
template <typename Event>
class EventWriter {
 public:
  // `tell` blocks while the client does not read. False: it has gone.
  explicit EventWriter(absl::AnyInvocable<bool(const Event&)> tell)
      : tell_(std::move(tell)), thread_([this] { Run(); }) {}
  ~EventWriter() { Finish(); }

  // Does not block. Of what is told `about` the same thing only the newest waits. False: the client
  // has gone.
  bool Tell(Event event, std::optional<uint32_t> about = std::nullopt) {
    absl::MutexLock lock(mu_);
    if (gone_) return false;
    if (about) std::erase_if(pending_, [&](const Pending& other) { return other.about == about; });
    if (pending_.size() == kEventsPendingMax) pending_.pop_front();
    pending_.push_back({about, std::move(event)});
    return true;
  }

  // Blocks until all is told, or the client has gone. Nothing may be told any more. Any number of
  // times.
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
    std::optional<uint32_t> about;
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
      if (tell_(next->event)) continue;
      absl::MutexLock lock(mu_);
      gone_ = true;
      return;
    }
  }

  absl::AnyInvocable<bool(const Event&)> tell_;  // thread_
  absl::Mutex mu_;
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // after what it uses
};

}  // namespace strata
