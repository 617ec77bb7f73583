// Work on the event loop from threads that may wait for it: those of gRPC's synchronous services.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/synchronization/notification.h"
#include "transport/base/event_loop.h"

namespace strata {

// Runs `fn` on `loop`'s thread and returns when it is done.
// REQUIRES: the loop runs, and the caller is on another thread.
inline void RunOnLoop(EventLoop* loop, absl::FunctionRef<void()> fn) {
  absl::Notification done;
  loop->Post([&] {
    fn();
    done.Notify();
  });
  done.WaitForNotification();
}

}  // namespace strata
