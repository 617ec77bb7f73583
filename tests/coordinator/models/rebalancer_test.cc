#include "coordinator/models/rebalancer.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

const SteadyTime kStart = SteadyTime() + absl::Hours(1);
constexpr SteadyTime kNever = SteadyTime::InfiniteFuture();

TEST(RebalanceSchedule, LooksSomeTimeAfterTheLastChange) {
  RebalanceSchedule schedule;
  EXPECT_EQ(schedule.at(), kNever);
  schedule.OnChange(kStart);
  schedule.OnChange(kStart + absl::Seconds(4));
  EXPECT_EQ(schedule.at(), kStart + absl::Seconds(9));
}

TEST(RebalanceSchedule, LooksAgainWhereAPlanMayBeBetterSoon) {
  RebalanceSchedule schedule;
  schedule.OnChange(kStart);
  schedule.Begin();
  schedule.End(/*again=*/false, kNever, kStart);
  EXPECT_EQ(schedule.at(), kNever);
  schedule.End(/*again=*/true, kNever, kStart);
  EXPECT_EQ(schedule.at(), kStart + absl::Seconds(30));
  schedule.End(/*again=*/false, kStart + absl::Seconds(20), kStart);
  EXPECT_EQ(schedule.at(), kStart + absl::Seconds(20));
}

TEST(RebalanceSchedule, AChangeDuringALookIsNotForgotten) {
  RebalanceSchedule schedule;
  schedule.Begin();
  schedule.OnChange(kStart);
  schedule.End(/*again=*/true, kNever, kStart + absl::Seconds(1));
  EXPECT_EQ(schedule.at(), kStart + absl::Seconds(5));
}

}  // namespace
}  // namespace strata
