// Time as the control code sees it. Everything that waits or stamps takes a Clock, so that tests
// run on a clock they move by hand (tests/support/fake_clock.h) and never sleep.
#pragma once

#include <cstdint>

namespace strata {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // Microseconds since an arbitrary start; never goes back.
  virtual int64_t NowUs() const = 0;

  // The machine's monotonic clock. Lives as long as the process.
  static Clock* Real();
};

}  // namespace strata
