#include "node/api/token_limiter.h"

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"

namespace strata {

TokenLimiter::Result TokenLimiter::Admit(const ApiTokenLimits& limits, int64_t now_us,
                                         bool stream) {
  while (!requests_us_.empty() && requests_us_.front() <= now_us - kMinuteUs) {
    requests_us_.pop_front();
  }
  const uint32_t requests_max = limits.requests_per_minute;
  if (requests_max > 0 && requests_us_.size() >= requests_max) {
    // After a limit was lowered the window may hold more requests than it allows: the excess must
    // leave it first.
    const int64_t freed_by = requests_us_[requests_us_.size() - requests_max];
    return {.why_not = absl::StrCat(requests_max, " requests in a minute are this token's limit"),
            .retry_after_us = freed_by + kMinuteUs - now_us};
  }
  if (stream && limits.streams_max > 0 && streams_ >= limits.streams_max) {
    return {.why_not = absl::StrCat(limits.streams_max, " streams at once are this token's limit")};
  }
  if (requests_max > 0) requests_us_.push_back(now_us);
  if (stream) ++streams_;
  return {.admitted = true};
}

void TokenLimiter::StreamEnded() {
  CHECK_GT(streams_, 0u);
  --streams_;
}

}  // namespace strata
