// At shutdown, waits for calls whose callbacks are still to come. Thread-safe.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace strata {

class CallbackGate {
 public:
  // False once Wait() has been called: the gate is closed.
  bool TryEnter() {
    absl::MutexLock lock(mu_);
    if (closed_) return false;
    ++inside_;
    return true;
  }
  void Enter() {
    absl::MutexLock lock(mu_);
    ++inside_;
  }
  // REQUIRES: after this the caller touches nothing that the waiting thread destroys.
  void Leave() {
    absl::MutexLock lock(mu_);
    --inside_;
  }
  // Closes the gate and blocks until every Enter() has its Leave().
  void Wait() {
    absl::MutexLock lock(mu_);
    closed_ = true;
    mu_.Await(absl::Condition(+[](int* inside) { return *inside == 0; }, &inside_));
  }

 private:
  absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  int inside_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace strata
