#include "transport/base/clock.h"

#include <chrono>

namespace strata {
namespace {

class RealClock : public Clock {
 public:
  int64_t NowUs() const override {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  }
};

}  // namespace

Clock* Clock::Real() {
  static RealClock* const clock = new RealClock;
  return clock;
}

}  // namespace strata
