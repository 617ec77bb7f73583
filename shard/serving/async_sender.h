// A background thread that runs one piece of work at a time for its owner, which continues.
// For work that takes less time than the owner's own: a second piece waits for the first.
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
  // Waits for pending work.
  ~AsyncSender();

  // Runs `work` on the background thread; first waits until earlier work is done.
  void Run(Work work);
  // Waits until all work is done, at most `most`; returns whether it is.
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
