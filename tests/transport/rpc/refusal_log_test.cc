#include "transport/rpc/refusal_log.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"
#include "tests/support/log_capture.h"

namespace strata {
namespace {

using ::testing::ElementsAre;

class RefusalLogTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  RefusalLog refusals_{"7400", &clock_};
  testing::LogCapture log_;
};

TEST_F(RefusalLogTest, LogsEachSourceAndReasonOnce) {
  for (int i = 0; i < 1000; ++i) {
    refusals_.Add("10.0.0.7", "it shows no certificate");
    refusals_.Add("10.0.0.7", "it opens too many connections");
    refusals_.Add("10.0.0.8", "it shows no certificate");
  }
  EXPECT_THAT(log_.Take(),
              ElementsAre("10.0.0.7 does not get in at port 7400: it shows no certificate",
                          "10.0.0.7 does not get in at port 7400: it opens too many connections",
                          "10.0.0.8 does not get in at port 7400: it shows no certificate"));
}

TEST_F(RefusalLogTest, LogsAgainAfterAWhileWithTheNumberSince) {
  refusals_.Add("a", "b");
  clock_.AdvanceMs(299'999);
  refusals_.Add("a", "b");
  refusals_.Add("a", "b");
  EXPECT_THAT(log_.Take(), ElementsAre("a does not get in at port 7400: b"));
  clock_.AdvanceMs(1);
  refusals_.Add("a", "b");
  refusals_.Add("a", "b");
  EXPECT_THAT(
      log_.Take(),
      ElementsAre("a does not get in at port 7400: b (and 2 more since this was last logged)"));
  clock_.AdvanceMs(300'000);
  refusals_.Add("a", "b");
  EXPECT_THAT(
      log_.Take(),
      ElementsAre("a does not get in at port 7400: b (and 1 more since this was last logged)"));
}

TEST_F(RefusalLogTest, ManySourcesAreLoggedAsOne) {
  for (size_t i = 0; i < 10 * kRefusalsMax; ++i) refusals_.Add(absl::StrCat("source ", i), "b");
  EXPECT_EQ(log_.Lines("source ").size(), kRefusalsMax);
  EXPECT_THAT(log_.Lines("another address"),
              ElementsAre("another address does not get in at port 7400: b"));
  EXPECT_EQ(log_.Take().size(), kRefusalsMax + 1);
  // Old ones make room.
  clock_.AdvanceMs(300'000);
  refusals_.Add("a", "b");
  EXPECT_THAT(log_.Take(), ElementsAre("a does not get in at port 7400: b"));
}

}  // namespace
}  // namespace strata
