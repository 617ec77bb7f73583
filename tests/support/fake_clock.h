// A clock that a test moves by hand. Work that waits on it (FakeEventLoop) runs on the thread that
// moves it, in the order of due times.
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

  // Has work that falls due.
  class Sleeper {
   public:
    virtual ~Sleeper() = default;
    // When the next piece of work is due, at most now when it is ready; kNever if there is none.
    virtual int64_t NextDueUs() const = 0;
    // Does one piece of work that is due, if any.
    virtual void RunOne() = 0;
  };

  FakeClock() = default;

  int64_t NowUs() const override { return now_us_.load(); }

  // Runs everything that falls due up to then, each at its own time.
  void AdvanceUs(int64_t us);
  void AdvanceMs(int64_t ms) { AdvanceUs(ms * 1000); }

  // Runs all work that is due now, and work that becomes due by it.
  void RunDue() { AdvanceUs(0); }

  // REQUIRES: `sleeper` is removed before it is destroyed.
  void Add(Sleeper* sleeper);
  void Remove(Sleeper* sleeper);

 private:
  std::atomic<int64_t> now_us_{1'000'000};
  std::vector<Sleeper*> sleepers_;  // equal times run in the order they were added
};

}  // namespace strata
