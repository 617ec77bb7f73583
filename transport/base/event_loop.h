// The one thread that owns a process's control state: timers, signals, descriptors, and work posted
// to it from gRPC callbacks and compute threads. Nothing that runs on it blocks.
//
//   auto loop = EventLoop::Create();
//   loop->Post([&] { ... });                            // any thread
//   auto timer = loop->StartTimer(500, 500, [&] { ... });  // loop thread
//   loop->Run();                                        // until Stop()
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"

namespace strata {

class EventLoop {
 public:
  // A timer or a watch; destroying it on the loop thread cancels it, and its callback is not
  // called afterwards. Must not outlive the loop.
  class Handle {
   public:
    virtual ~Handle() = default;
  };

  virtual ~EventLoop() = default;

  // A loop on libuv and the real clock. Aborts when the system has no more descriptors.
  static std::unique_ptr<EventLoop> Create();

  // Runs callbacks on the calling thread, which becomes the loop thread, until Stop(). What was
  // posted before Stop() runs before Run() returns.
  virtual void Run() = 0;

  // Any thread, also from a callback. Later calls do nothing.
  virtual void Stop() = 0;

  // Any thread. Runs `fn` on the loop thread, in the order posted. After Run() has returned, `fn`
  // is destroyed without being called.
  virtual void Post(absl::AnyInvocable<void() &&> fn) = 0;

  // Loop thread, or before Run(). First after `delay_ms`, then each `repeat_ms` (0: once). Where
  // both are a second or more the first time may come up to a second early, to share its wake with
  // others.
  struct TimerOptions {
    uint64_t delay_ms = 0;
    uint64_t repeat_ms = 0;
  };
  virtual std::unique_ptr<Handle> StartTimer(TimerOptions options,
                                             absl::AnyInvocable<void()> fn) = 0;

  // Loop thread, or before Run(). Calls `fn` on the loop thread each time the process gets
  // `signum`.
  virtual std::unique_ptr<Handle> OnSignal(int signum, absl::AnyInvocable<void()> fn) = 0;

  // Loop thread, or before Run(). Calls `fn` on the loop thread as long as `fd` is ready for one of
  // the `wanted` events. An error of the descriptor counts as ready for all of them: reading or
  // writing returns the error. `fd` has one watch at a time and stays open until the watch is
  // destroyed.
  struct FdEvents {
    bool readable = false;
    bool writable = false;
  };
  virtual std::unique_ptr<Handle> WatchFd(int fd, FdEvents wanted,
                                          absl::AnyInvocable<void(FdEvents)> fn) = 0;

  virtual bool InLoopThread() const = 0;
};

}  // namespace strata
