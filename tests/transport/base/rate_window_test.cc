#include "transport/base/rate_window.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

TEST(RateWindow, KnowsNothingAtItsStart) {
  const RateWindow window(5 * kSecondUs);
  EXPECT_EQ(window.SpanUs(5 * kSecondUs), 0);
  EXPECT_EQ(window.PerSecond(5 * kSecondUs), 0);
}

TEST(RateWindow, IsTheMeanSinceItsStartWhileItIsYoung) {
  RateWindow window(0);
  window.Add(kSecondUs, 30);
  window.Add(2 * kSecondUs, 30);
  EXPECT_EQ(window.SpanUs(4 * kSecondUs), 4 * kSecondUs);
  EXPECT_DOUBLE_EQ(window.PerSecond(4 * kSecondUs), 15);
}

TEST(RateWindow, ForgetsOldAmounts) {
  RateWindow window(0);
  window.Add(0, 1e9);
  for (int64_t s = 20; s <= 40; ++s) window.Add(s * kSecondUs, 7);
  // Eleven buckets of 7 in ten seconds: the newest has just begun.
  EXPECT_DOUBLE_EQ(window.PerSecond(40 * kSecondUs), 7.7);
  EXPECT_DOUBLE_EQ(window.PerSecond(60 * kSecondUs), 0);
}

TEST(RateWindow, AStageThatComputesHalfOfTheTimeIsIdleForTheRest) {
  RateWindow busy_us(0);
  for (int64_t s = 0; s < 8; ++s) busy_us.Add(s * kSecondUs, kSecondUs / 2);
  EXPECT_DOUBLE_EQ(IdleShare(busy_us, 8 * kSecondUs), 0.5);
  // One long step is reported at its end, and is longer than the window.
  busy_us.Add(8 * kSecondUs, 60.0 * kSecondUs);
  EXPECT_EQ(IdleShare(busy_us, 8 * kSecondUs), 0);
  EXPECT_EQ(IdleShare(busy_us, 100 * kSecondUs), 1);
}

}  // namespace
}  // namespace strata
