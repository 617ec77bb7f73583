// A value that takes long to get: a thread gets it, once for all who wait for it at that time, and
// those who take an older value get that at once.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "transport/base/steady_time.h"
#include "transport/base/thread_name.h"

namespace strata {

// Thread-safe. T is cheap to copy: a shared pointer.
template <typename T>
class CachedFetch {
 public:
  struct Options {
    const char* thread_name = "";
    size_t waiting_max = 0;  // callers that may wait for one fetch
  };
  using Fetch = std::function<absl::StatusOr<T>()>;
  using Done = absl::AnyInvocable<void(const absl::StatusOr<T>&) &&>;

  // `fetch` is called on a thread of this object, and may block.
  CachedFetch(Options options, Fetch fetch)
      : options_(options), fetch_(std::move(fetch)), thread_([this] { Run(); }) {}
  // Waits for a fetch in progress.
  ~CachedFetch() {
    Stop();
    thread_.join();
  }

  // Never blocks; `done` gets a value that was fetched at most `age_max` ago, or the error of
  // `fetch`, on this thread or the fetching one. kResourceExhausted: too many wait; kUnavailable:
  // Stop() was called.
  void Get(absl::Duration age_max, Done done) {
    absl::StatusOr<T> now = absl::ResourceExhaustedError("too many calls for a list at once");
    {
      absl::MutexLock lock(mu_);
      if (stopping_) {
        now = Stopping();
      } else if (value_.ok() && SteadyTime::Now() - fetched_at_ <= age_max) {
        now = value_;
      } else if (waiting_.size() < options_.waiting_max) {
        waiting_.push_back(std::move(done));
        return;
      }
    }
    std::move(done)(now);
  }

  // Fails all waiting and future calls. Any number of times.
  void Stop() {
    absl::MutexLock lock(mu_);
    stopping_ = true;
  }

 private:
  static absl::Status Stopping() { return absl::UnavailableError("the node is stopping"); }

  void Run() {
    NameThread(options_.thread_name);
    const auto is_due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return stopping_ || !waiting_.empty();
    };
    while (true) {
      std::vector<Done> callbacks;
      bool stopping = false;
      {
        absl::MutexLock lock(mu_);
        mu_.Await(absl::Condition(&is_due));
        callbacks.swap(waiting_);
        stopping = stopping_;
      }
      const SteadyTime at = SteadyTime::Now();
      const absl::StatusOr<T> value = stopping ? absl::StatusOr<T>(Stopping()) : fetch_();
      if (value.ok()) {
        absl::MutexLock lock(mu_);
        value_ = value;
        fetched_at_ = at;
      }
      for (Done& done : callbacks) std::move(done)(value);
      if (stopping) return;
    }
  }

  const Options options_;
  const Fetch fetch_;

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::StatusOr<T> value_ ABSL_GUARDED_BY(mu_) = absl::UnavailableError("not fetched yet");
  SteadyTime fetched_at_ ABSL_GUARDED_BY(mu_) = SteadyTime::InfinitePast();
  std::vector<Done> waiting_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;  // last: uses the others
};

}  // namespace strata
