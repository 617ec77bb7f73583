#include "transport/rpc/connection_limiter.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace strata {
namespace {

using Verdict = ConnectionLimiter::Verdict;

constexpr ConnectionLimits kLimits{
    .source_per_s = 2, .source_burst = 4, .total_per_s = 5, .total_burst = 10, .sources_max = 3};

class ConnectionLimiterTest : public ::testing::Test {
 protected:
  // The number of `n` connections from `source` that are admitted.
  int Admitted(const std::string& source, int n = 100) {
    int admitted = 0;
    for (int i = 0; i < n; ++i) admitted += limiter_.Admit(source) == Verdict::kAdmitted ? 1 : 0;
    return admitted;
  }

  FakeClock clock_;
  ConnectionLimiter limiter_{kLimits, &clock_};
};

TEST_F(ConnectionLimiterTest, AdmitsABurstAndThenItsRate) {
  EXPECT_EQ(Admitted("a"), 4);
  EXPECT_EQ(limiter_.Admit("a"), Verdict::kTooManyOfSource);
  clock_.AdvanceMs(499);
  EXPECT_EQ(Admitted("a"), 0);
  clock_.AdvanceMs(1);
  EXPECT_EQ(Admitted("a"), 1);
  clock_.AdvanceMs(1000);
  EXPECT_EQ(Admitted("a"), 2);
}

TEST_F(ConnectionLimiterTest, ABurstGrowsBackToItsBoundOnly) {
  EXPECT_EQ(Admitted("a"), 4);
  clock_.AdvanceMs(3'600'000);
  EXPECT_EQ(Admitted("a"), 4);
}

TEST_F(ConnectionLimiterTest, AFloodFromOneAddressLeavesOthersAlone) {
  EXPECT_EQ(Admitted("a", 10'000), 4);
  EXPECT_EQ(Admitted("b"), 4);
}

TEST_F(ConnectionLimiterTest, AllTogetherAreBounded) {
  EXPECT_EQ(Admitted("a"), 4);
  EXPECT_EQ(Admitted("b"), 4);
  EXPECT_EQ(Admitted("c"), 2);
  EXPECT_EQ(limiter_.Admit("d"), Verdict::kTooMany);
  clock_.AdvanceMs(200);
  EXPECT_EQ(Admitted("d"), 1);
}

TEST_F(ConnectionLimiterTest, AKnownSourceIsNotKeptOutByUnknownOnes) {
  EXPECT_EQ(Admitted("member", 1), 1);
  limiter_.SetKnown("member");
  EXPECT_EQ(Admitted("a") + Admitted("b") + Admitted("c"), 9);
  ASSERT_EQ(limiter_.Admit("c"), Verdict::kTooMany);
  EXPECT_EQ(Admitted("member"), 3);  // its own bound is still there
  EXPECT_EQ(limiter_.Admit("member"), Verdict::kTooManyOfSource);
  clock_.AdvanceMs(1000);
  EXPECT_EQ(Admitted("member"), 5);  // as many as all the others
}

TEST_F(ConnectionLimiterTest, ASourceIsKnownForAnHourAtMost) {
  limiter_.SetKnown("member");
  clock_.AdvanceMs(3'600'000);
  Admitted("a");
  Admitted("b");
  EXPECT_EQ(Admitted("member"), 2);
}

TEST_F(ConnectionLimiterTest, RememberedSourcesAreBounded) {
  EXPECT_EQ(Admitted("a", 1), 1);
  EXPECT_EQ(Admitted("b", 1), 1);
  EXPECT_EQ(Admitted("c", 1), 1);
  // Sources for which there is no room share one bucket.
  EXPECT_EQ(Admitted("d", 3) + Admitted("e", 3), 4);
  EXPECT_EQ(limiter_.n_sources(), 3u);
  // A source without connections for a while is forgotten, and makes room.
  clock_.AdvanceMs(2000);
  EXPECT_EQ(Admitted("f"), 4);
  EXPECT_EQ(limiter_.n_sources(), 1u);
}

TEST_F(ConnectionLimiterTest, KnownSourcesStayWhenRoomIsMade) {
  limiter_.SetKnown("member");
  for (int i = 0; i < 20; ++i) {
    Admitted(absl::StrCat("stranger ", i));
    clock_.AdvanceMs(2000);
  }
  EXPECT_LE(limiter_.n_sources(), 3u);
  Admitted("a");
  Admitted("b");
  Admitted("c");
  ASSERT_EQ(limiter_.Admit("d"), Verdict::kTooMany);
  EXPECT_EQ(Admitted("member"), 10);
}

TEST(ConnectionLimits, LeaveMembersAlone) {
  FakeClock clock;
  ConnectionLimiter limiter(ConnectionLimits(), &clock);
  for (int member = 0; member < 4; ++member) {
    for (int i = 0; i < 256; ++i) {
      EXPECT_EQ(limiter.Admit(absl::StrCat("10.0.0.", member)), Verdict::kAdmitted);
    }
  }
}

}  // namespace
}  // namespace strata
