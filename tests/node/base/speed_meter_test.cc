#include "node/base/speed_meter.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

SteadyTime At(int64_t seconds) { return SteadyTime() + absl::Seconds(seconds); }

TEST(SpeedMeter, IsOfTheLastSeconds) {
  SpeedMeter meter;
  EXPECT_EQ(meter.bytes_per_s(), 0);
  meter.Update(At(0), 0);
  EXPECT_EQ(meter.bytes_per_s(), 0);
  meter.Update(At(2), 2'000);
  EXPECT_EQ(meter.bytes_per_s(), 1'000);
  for (int second = 3; second <= 12; ++second) meter.Update(At(second), 2'000);
  EXPECT_EQ(meter.bytes_per_s(), 0);
}

TEST(SpeedMeter, BeginsAnewWithFewerBytes) {
  SpeedMeter meter;
  meter.Update(At(0), 5'000);
  meter.Update(At(1), 0);
  EXPECT_EQ(meter.bytes_per_s(), 0);
  meter.Update(At(2), 300);
  EXPECT_EQ(meter.bytes_per_s(), 300);
}

TEST(SpeedMeter, TextHasTheTimeLeft) {
  EXPECT_EQ(SpeedText(0, 100), "");
  EXPECT_EQ(SpeedText(35e6, 35'000'000ull * 52), "35.0 MB/s  0:52 left");
  EXPECT_EQ(SpeedText(1e6, 3'661'000'000), "1.0 MB/s  1:01:01 left");
}

}  // namespace
}  // namespace strata
