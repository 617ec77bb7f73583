// Requests that wait for a model to be loaded, since they named it: one load for all that name it,
// whose result all get. A state machine without I/O, thread or clock; node/gateway/gateway.h
// carries the loads out. Thread-safe; callbacks are called without a lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/coordinator.pb.h"
#include "transport/base/steady_time.h"

namespace strata {

// Requests of a node that wait for loads, and how long each does.
inline constexpr size_t kLoadWaitersMax = 512;
inline constexpr absl::Duration kLoadWaitTime = absl::Minutes(15);

class LoadQueue {
 public:
  struct Options {
    size_t waiters_max = kLoadWaitersMax;
    absl::Duration wait_time = kLoadWaitTime;
  };
  struct Waiter {
    // The load's progress in words: "loading NAME 45 %". Called now and then, also without news.
    std::function<void(const std::string& words)> on_progress;
    // Once, unless it left: the loaded model, or why the load failed. kUnavailable, RetryAfterMs():
    // it takes longer than a request waits.
    absl::AnyInvocable<void(const absl::StatusOr<wire::ModelStatus>&) &&> on_end;
  };
  explicit LoadQueue(Options options) : options_(options) {}

  struct Place {
    uint64_t number = 0;    // for Leave()
    bool is_first = false;  // the caller starts the load, and reports it from now on
  };
  // Waits for the load of what `key` names for programs, and `name` for people. Where too many
  // wait, the waiter ends at once: kResourceExhausted, RetryAfterMs().
  Place Join(const std::string& key, const std::string& name, Waiter waiter, SteadyTime now);
  // It waits no longer; the load goes on.
  void Leave(uint64_t number);

  void OnNote(const std::string& key, const std::string& note);
  void OnProgress(const std::string& key, const wire::StageProgress& progress);
  void OnEnd(const std::string& key, const absl::StatusOr<wire::ModelStatus>& result);
  // About once a second while is_empty() is false.
  void Tick(SteadyTime now);
  bool is_empty() const;  // nobody waits

 private:
  struct Waiting {
    Waiter waiter;
    SteadyTime until;
  };
  struct Load {
    std::string name, note;
    std::map<uint32_t, wire::LoadProgress> stages;
    std::map<uint64_t, Waiting> waiting;

    std::string Words() const;
  };
  void Report(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;

  mutable absl::Mutex mu_;
  std::map<std::string, Load> loads_ ABSL_GUARDED_BY(mu_);  // in progress; at most one a waiter
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  size_t n_waiting_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace strata
