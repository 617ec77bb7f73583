// Waits at shutdown for calls whose callbacks still come. Thread-safe.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace strata {

class CallbackGate {
 public:
  // False: somebody waits, or has waited, for all to leave.
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
  // The caller touches nothing that the waiter destroys after this.
  void Leave() {
    absl::MutexLock lock(mu_);
    --inside_;
  }
  // Blocks until everybody has left.
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
