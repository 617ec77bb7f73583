// Points in time of the machine's monotonic clock, for durations and deadlines. No duration is
// measured by the wall clock (wall_clock.h), which people and programs set; a type of its own keeps
// the two apart.
//
//   for (const SteadyTime until = SteadyTime::Now() + limit; SteadyTime::Now() < until;) …
//   mu.AwaitWithTimeout(condition, until - SteadyTime::Now());   // never …WithDeadline()
#pragma once

#include <chrono>
#include <compare>

#include "absl/time/time.h"

namespace strata {

// A value; any thread.
class SteadyTime {
 public:
  constexpr SteadyTime() = default;  // the clock's start
  static SteadyTime Now() {
    return SteadyTime(absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()));
  }
  static constexpr SteadyTime InfiniteFuture() { return SteadyTime(absl::InfiniteDuration()); }
  static constexpr SteadyTime InfinitePast() { return SteadyTime(-absl::InfiniteDuration()); }

  SteadyTime& operator+=(absl::Duration d) {
    since_start_ += d;
    return *this;
  }
  friend SteadyTime operator+(SteadyTime t, absl::Duration d) { return t += d; }
  friend SteadyTime operator-(SteadyTime t, absl::Duration d) { return t += -d; }
  friend absl::Duration operator-(SteadyTime a, SteadyTime b) {
    return a.since_start_ - b.since_start_;
  }
  friend bool operator==(SteadyTime a, SteadyTime b) { return a.since_start_ == b.since_start_; }
  friend std::weak_ordering operator<=>(SteadyTime a, SteadyTime b) {
    if (a.since_start_ < b.since_start_) return std::weak_ordering::less;
    return a == b ? std::weak_ordering::equivalent : std::weak_ordering::greater;
  }

 private:
  explicit constexpr SteadyTime(absl::Duration since_start) : since_start_(since_start) {}

  absl::Duration since_start_;
};

}  // namespace strata
