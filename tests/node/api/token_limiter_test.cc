#include "node/api/token_limiter.h"

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSecondUs = 1'000'000;

TEST(TokenLimiter, WithoutLimitsEverythingIsAdmitted) {
  TokenLimiter limiter;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(limiter.Admit({}, 0, true).admitted);
}

TEST(TokenLimiter, LimitsRequestsWithinAnyMinute) {
  const ApiTokenLimits limits = {.requests_per_minute = 3};
  TokenLimiter limiter;
  EXPECT_TRUE(limiter.Admit(limits, 0, false).admitted);
  EXPECT_TRUE(limiter.Admit(limits, 20 * kSecondUs, false).admitted);
  EXPECT_TRUE(limiter.Admit(limits, 40 * kSecondUs, false).admitted);
  const TokenLimiter::Result refused = limiter.Admit(limits, 50 * kSecondUs, false);
  EXPECT_FALSE(refused.admitted);
  EXPECT_THAT(refused.why_not, HasSubstr("3 requests in a minute"));
  EXPECT_EQ(refused.retry_after_us, 10 * kSecondUs);
  EXPECT_FALSE(limiter.Admit(limits, 60 * kSecondUs - 1, false).admitted);
  EXPECT_TRUE(limiter.Admit(limits, 60 * kSecondUs, false).admitted);
  EXPECT_FALSE(limiter.Admit(limits, 60 * kSecondUs, false).admitted);
  EXPECT_TRUE(limiter.Admit(limits, 80 * kSecondUs, false).admitted);
}

TEST(TokenLimiter, RefusedRequestsDoNotCount) {
  const ApiTokenLimits limits = {.requests_per_minute = 1};
  TokenLimiter limiter;
  EXPECT_TRUE(limiter.Admit(limits, 0, false).admitted);
  for (int64_t s = 1; s < 60; ++s) {
    EXPECT_FALSE(limiter.Admit(limits, s * kSecondUs, false).admitted);
  }
  EXPECT_TRUE(limiter.Admit(limits, 60 * kSecondUs, false).admitted);
}

TEST(TokenLimiter, LimitsStreamsAtOnce) {
  const ApiTokenLimits limits = {.streams_max = 2};
  TokenLimiter limiter;
  EXPECT_TRUE(limiter.Admit(limits, 0, true).admitted);
  EXPECT_TRUE(limiter.Admit(limits, 0, true).admitted);
  const TokenLimiter::Result refused = limiter.Admit(limits, 0, true);
  EXPECT_FALSE(refused.admitted);
  EXPECT_THAT(refused.why_not, HasSubstr("2 streams at once"));
  EXPECT_EQ(refused.retry_after_us, 0);
  EXPECT_TRUE(limiter.Admit(limits, 0, false).admitted);  // no stream
  limiter.StreamEnded();
  EXPECT_TRUE(limiter.Admit(limits, 0, true).admitted);
}

TEST(TokenLimiter, ARefusedStreamIsNotCountedAsARequest) {
  const ApiTokenLimits limits = {.requests_per_minute = 2, .streams_max = 1};
  TokenLimiter limiter;
  EXPECT_TRUE(limiter.Admit(limits, 0, true).admitted);
  EXPECT_FALSE(limiter.Admit(limits, 1, true).admitted);
  limiter.StreamEnded();
  EXPECT_TRUE(limiter.Admit(limits, 2, true).admitted);
  EXPECT_FALSE(limiter.Admit(limits, 3, false).admitted);
}

TEST(TokenLimiter, ALoweredLimitTakesEffect) {
  TokenLimiter limiter;
  for (int64_t s = 0; s < 10; ++s) {
    EXPECT_TRUE(limiter.Admit({.requests_per_minute = 10}, s * kSecondUs, true).admitted);
  }
  const TokenLimiter::Result refused =
      limiter.Admit({.requests_per_minute = 2}, 10 * kSecondUs, false);
  EXPECT_FALSE(refused.admitted);
  EXPECT_EQ(refused.retry_after_us, 58 * kSecondUs);
  EXPECT_FALSE(limiter.Admit({.streams_max = 5}, 10 * kSecondUs, true).admitted);
  EXPECT_TRUE(limiter.Admit({.requests_per_minute = 2}, 68 * kSecondUs, false).admitted);
}

}  // namespace
}  // namespace strata
