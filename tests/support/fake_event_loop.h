// An event loop without a thread of its own: work runs when the test moves the clock. Several loops
// on one clock make several nodes in one thread, always in the same order.
//
//   FakeClock clock;
//   FakeEventLoop loop(&clock);
//   ... code under test posts and starts timers ...
//   clock.AdvanceMs(500);   // runs posts and timers up to then
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "tests/support/fake_clock.h"
#include "transport/base/event_loop.h"
#include "transport/base/mutex.h"

namespace strata {

// The thread that makes it is the loop thread and moves the clock; Post() and Stop() come from any.
class FakeEventLoop : public EventLoop, private FakeClock::Sleeper {
 public:
  // `clock` must outlive the loop.
  explicit FakeEventLoop(FakeClock* clock);
  ~FakeEventLoop() override;

  // Runs posts, also those of other threads, until Stop(). Time stands still meanwhile.
  void Run() override;
  void Stop() override;
  void Post(absl::AnyInvocable<void() &&> fn) override;
  std::unique_ptr<Handle> StartTimer(TimerOptions options, absl::AnyInvocable<void()> fn) override;
  std::unique_ptr<Handle> OnSignal(int signum, absl::AnyInvocable<void()> fn) override;
  // Fails a CHECK: the kernel's descriptors know nothing of this loop's time.
  std::unique_ptr<Handle> WatchFd(int fd, FdEvents wanted,
                                  absl::AnyInvocable<void(FdEvents)> fn) override;
  bool InLoopThread() const override;

  // As if the process got `signum`: calls its watches.
  void Raise(int signum);

  // Timers and signal watches that exist: tests check that none is leaked.
  size_t watches() const { return watches_.size(); }
  // Calls of timers so far, of which idle code must not make many.
  size_t timer_calls() const { return timer_calls_; }

 private:
  struct Watch;
  class WatchHandle;

  int64_t NextDueUs() const override;
  void RunOne() override;
  bool RunOnePosted();
  void Call(const std::shared_ptr<Watch>& watch);

  // Constant after construction.
  FakeClock* const clock_;
  const std::thread::id thread_;

  // Loop thread only.
  std::deque<std::shared_ptr<Watch>> watches_;  // in the order started; shared with running calls
  size_t timer_calls_ = 0;

  mutable Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<absl::AnyInvocable<void() &&>> posted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
