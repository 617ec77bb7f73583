// A thread beside another one, to which that hands over one piece of work at a time and goes on.
// For work that takes less than what its owner does meanwhile: a second piece waits for the first.
#pragma once

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace strata {

// Used by one thread. No thread is started before the first Run().
class AsyncSender {
 public:
  using Work = absl::AnyInvocable<void() &&>;

  AsyncSender() = default;
  // Waits for what was handed over.
  ~AsyncSender();

  // Has it done on the other thread, after what was handed over before is done.
  void Run(Work work);
  // Until all that was handed over is done, or for so long; whether it is.
  bool Wait(absl::Duration most = absl::InfiniteDuration());

 private:
  void Loop();

  absl::Mutex mu_;
  Work work_ ABSL_GUARDED_BY(mu_);
  bool has_work_ ABSL_GUARDED_BY(mu_) = false;  // until it is done
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  absl::CondVar given_, done_;
  std::thread thread_;
};

}  // namespace strata
