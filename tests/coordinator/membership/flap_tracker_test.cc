#include "coordinator/membership/flap_tracker.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

const SteadyTime kStart = SteadyTime() + absl::Seconds(1'000'000);

TEST(NodeFlapTracker, OneLossIsForgiven) {
  NodeFlapTracker losses;
  EXPECT_THAT(losses.WhyExcluded("attic", kStart), IsEmpty());
  losses.Add("attic", kStart);
  EXPECT_THAT(losses.WhyExcluded("attic", kStart), IsEmpty());
}

TEST(NodeFlapTracker, ANodeThatComesAndGoesIsKeptOutForLongerEachTime) {
  NodeFlapTracker losses;
  SteadyTime now = kStart;
  losses.Add("attic", now);
  for (const absl::Duration out : {kExclusionFirst, 2 * kExclusionFirst, 4 * kExclusionFirst}) {
    now += absl::Minutes(2);
    losses.Add("attic", now);
    EXPECT_THAT(losses.WhyExcluded("attic", now + out - absl::Seconds(1)),
                HasSubstr("another 1 s"));
    EXPECT_THAT(losses.WhyExcluded("attic", now + out), IsEmpty());
  }
  EXPECT_THAT(losses.WhyExcluded("attic", now), HasSubstr("4 times"));
  EXPECT_THAT(losses.WhyExcluded("cellar", now), IsEmpty());
  EXPECT_THAT(losses.ExcludedNodes(now), ElementsAre(Pair("attic", HasSubstr("4 times"))));
}

TEST(NodeFlapTracker, TheTimeIsBounded) {
  NodeFlapTracker losses;
  for (int i = 0; i < 100; ++i) losses.Add("attic", kStart);
  EXPECT_THAT(losses.WhyExcluded("attic", kStart),
              HasSubstr(absl::StrCat(absl::ToInt64Seconds(kExclusionMax), " s")));
  EXPECT_THAT(losses.WhyExcluded("attic", kStart + kExclusionMax), IsEmpty());
}

TEST(NodeFlapTracker, SaysWhenTheNextNodeIsBack) {
  NodeFlapTracker losses;
  losses.Add("attic", kStart);
  EXPECT_EQ(losses.NextReturn(kStart), SteadyTime::InfiniteFuture());
  losses.Add("attic", kStart);
  for (int i = 0; i < 3; ++i) losses.Add("cellar", kStart);
  EXPECT_EQ(losses.NextReturn(kStart), kStart + kExclusionFirst);
  EXPECT_EQ(losses.NextReturn(kStart + kExclusionFirst), kStart + 2 * kExclusionFirst);
  EXPECT_EQ(losses.NextReturn(kStart + 2 * kExclusionFirst), SteadyTime::InfiniteFuture());
}

TEST(NodeFlapTracker, ForgetsLossesAfterAWhile) {
  NodeFlapTracker losses;
  for (int i = 0; i < 5; ++i) losses.Add("attic", kStart);
  losses.Add("attic", kStart + kLossesForgotten);
  EXPECT_THAT(losses.WhyExcluded("attic", kStart + kLossesForgotten), IsEmpty());
}

TEST(NodeFlapTracker, OnlySoManyNodesAreRemembered) {
  NodeFlapTracker losses;
  losses.Add("first", kStart);
  losses.Add("first", kStart);
  for (size_t i = 0; i < kLossesMax; ++i) losses.Add(absl::StrCat(i), kStart + absl::Seconds(1));
  EXPECT_THAT(losses.WhyExcluded("first", kStart + absl::Seconds(1)), IsEmpty());
}

}  // namespace
}  // namespace strata
