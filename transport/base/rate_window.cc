#include "transport/base/rate_window.h"

#include <algorithm>

namespace strata {

void RateWindow::Add(int64_t now_us, double amount) {
  const int64_t number = now_us / kBucketUs;
  Bucket& bucket = buckets_[static_cast<size_t>(number) % buckets_.size()];
  if (bucket.number != number) bucket = {.number = number};
  bucket.amount += amount;
}

int64_t RateWindow::SpanUs(int64_t now_us) const {
  // From the beginning of the oldest bucket that counts.
  const int64_t oldest_us = (now_us / kBucketUs - static_cast<int64_t>(kSeconds)) * kBucketUs;
  return std::max<int64_t>(0, now_us - std::max(start_us_, oldest_us));
}

double RateWindow::PerSecond(int64_t now_us) const {
  const int64_t span_us = SpanUs(now_us);
  if (span_us == 0) return 0;
  const int64_t newest = now_us / kBucketUs;
  double sum = 0;
  for (const Bucket& bucket : buckets_) {
    const bool counts =
        bucket.number <= newest && bucket.number >= newest - static_cast<int64_t>(kSeconds);
    if (counts && bucket.number >= 0) sum += bucket.amount;
  }
  return sum * 1e6 / static_cast<double>(span_us);
}

double IdleShare(const RateWindow& busy_us, int64_t now_us) {
  return std::clamp(1 - busy_us.PerSecond(now_us) / 1e6, 0.0, 1.0);
}

}  // namespace strata
