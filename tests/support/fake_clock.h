// A clock that a test moves by hand. What waits on it (FakeEventLoop) runs on the thread that moves
// it, in the order of the times it waits for.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "transport/base/clock.h"

namespace strata {

// NowUs() is thread-safe; everything else belongs to the test's thread.
class FakeClock : public Clock {
 public:
  static constexpr int64_t kNever = INT64_MAX;

  // Something with work that falls due.
  class Sleeper {
   public:
    virtual ~Sleeper() = default;
    // When the next piece of work is due, kNever if there is none; at most now when it is ready.
    virtual int64_t NextDueUs() const = 0;
    // Does one piece of work that is due, if any.
    virtual void RunOne() = 0;
  };

  FakeClock() = default;

  int64_t NowUs() const override { return now_us_.load(); }

  // Runs everything that falls due up to then, each at its own time.
  void AdvanceUs(int64_t us);
  void AdvanceMs(int64_t ms) { AdvanceUs(ms * 1000); }

  // Runs everything that is due now, and what that makes ready.
  void RunDue() { AdvanceUs(0); }

  // `sleeper` leaves before it dies.
  void Add(Sleeper* sleeper);
  void Remove(Sleeper* sleeper);

 private:
  std::atomic<int64_t> now_us_{1'000'000};
  std::vector<Sleeper*> sleepers_;  // equal times run in the order they were added
};

}  // namespace strata
