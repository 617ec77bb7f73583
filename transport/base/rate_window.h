// A rate over about the last ten seconds: a stage's time of computing, its rows. Kept in buckets of
// a second, so that it costs nothing until it is read. A pure value; not thread-safe. Times are
// microseconds of any clock that never goes back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace strata {

class RateWindow {
 public:
  static constexpr size_t kSeconds = 10;

  explicit RateWindow(int64_t start_us) : start_us_(start_us) {}

  // Adds `amount` at time `now_us`.
  void Add(int64_t now_us, double amount);
  // The length of the time that is covered, up to `now_us`; 0: none yet.
  int64_t SpanUs(int64_t now_us) const;
  // Mean over SpanUs(); 0 where that is 0.
  double PerSecond(int64_t now_us) const;

 private:
  static constexpr int64_t kBucketUs = 1'000'000;
  struct Bucket {
    int64_t number = -1;  // of its second
    double amount = 0;
  };
  int64_t start_us_;
  std::array<Bucket, kSeconds + 1> buckets_ = {};
};

// The share of time, 0 to 1, that a stage waited. `busy_us` counts its microseconds of computing.
double IdleShare(const RateWindow& busy_us, int64_t now_us);

}  // namespace strata
