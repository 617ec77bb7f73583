// How much of something there was in about the last ten seconds: what a stage computed, its rows.
// Kept in buckets of a second, so that it costs nothing while nobody asks. A pure value; not
// thread-safe. Times are microseconds of any clock that never goes back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace strata {

class RateWindow {
 public:
  static constexpr size_t kSeconds = 10;

  explicit RateWindow(int64_t start_us) : start_us_(start_us) {}

  // At `now_us` there was `amount` more.
  void Add(int64_t now_us, double amount);
  // How long what is known reaches back; 0: nothing is.
  int64_t SpanUs(int64_t now_us) const;
  // Mean over that; 0 where nothing is known.
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

// Of a stage whose microseconds of computing are counted in `busy_us`: how much of the time it
// waited, 0 to 1.
double IdleShare(const RateWindow& busy_us, int64_t now_us);

}  // namespace strata
