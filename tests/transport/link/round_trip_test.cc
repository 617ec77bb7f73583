#include "transport/link/round_trip.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/memory_link.h"
#include "tests/support/recorder.h"

namespace strata {
namespace {

using absl_testing::StatusIs;

absl::StatusOr<DialledMemoryLink> DialSink(RoundTripSink* sink, Link::Receiver* receiver) {
  MemoryDialOptions options;
  options.hello.set_probe(true);
  return DialMemoryLink(
      std::move(options), [sink](const wire::Hello&) { return sink->Accept(); }, receiver);
}

TEST(RoundTrip, IsPositive) {
  RoundTripSink sink;
  RoundTripTimer timer;
  auto dialled = DialSink(&sink, &timer);
  ASSERT_TRUE(dialled.ok()) << dialled.status();
  const absl::StatusOr<absl::Duration> took = timer.Measure(dialled->link.get());
  ASSERT_TRUE(took.ok()) << took.status();
  EXPECT_GT(*took, absl::ZeroDuration());
  EXPECT_LT(*took, absl::Seconds(1));
}

TEST(RoundTrip, IsTheLinksErrorWhenItBreaks) {
  RoundTripSink sink;
  RoundTripTimer timer;
  auto dialled = DialSink(&sink, &timer);
  ASSERT_TRUE(dialled.ok()) << dialled.status();
  dialled->wire->Break();
  EXPECT_THAT(timer.Measure(dialled->link.get()), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(RoundTrip, TimesOutWhenThePeerHangs) {
  RoundTripSink sink;
  RoundTripTimer timer;
  auto dialled = DialSink(&sink, &timer);
  ASSERT_TRUE(dialled.ok()) << dialled.status();
  dialled->wire->Stall();
  EXPECT_THAT(timer.Measure(dialled->link.get()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  dialled->wire->Resume();
}

TEST(RoundTripSink, TakesABoundedNumberOfLinksAndForgetsClosedOnes) {
  RoundTripSink sink;
  std::vector<std::unique_ptr<RoundTripTimer>> timers;
  std::vector<DialledMemoryLink> open;
  for (size_t i = 0; i < kRoundTripLinksMax; ++i) {
    timers.push_back(std::make_unique<RoundTripTimer>());
    auto dialled = DialSink(&sink, timers.back().get());
    ASSERT_TRUE(dialled.ok()) << dialled.status();
    open.push_back(*std::move(dialled));
  }
  RoundTripTimer late;
  EXPECT_THAT(DialSink(&sink, &late), StatusIs(absl::StatusCode::kResourceExhausted));
  open.clear();
  sink.ReclaimClosedLinks();
  // The acceptors notice it a moment later.
  absl::StatusOr<DialledMemoryLink> again = absl::UnknownError("not tried");
  for (int i = 0; i < 10'000 && !again.ok(); ++i) again = DialSink(&sink, &late);
  EXPECT_TRUE(again.ok()) << again.status();
  again = absl::UnknownError("closed");
}

TEST(RoundTripSink, ClosedLinksAreBounded) {
  RoundTripSink sink;
  absl::Status status;
  size_t taken = 0;
  for (int i = 0; i < 10'000 && taken <= 3 * kRoundTripLinksMax; ++i) {
    RoundTripTimer timer;
    auto dialled = DialSink(&sink, &timer);
    status = dialled.status();
    taken += dialled.ok() ? 1 : 0;
    // Earlier links may not have noticed yet that they closed.
    if (!status.ok() && !absl::StrContains(status.message(), "being measured already")) break;
  }
  EXPECT_EQ(taken, 2 * kRoundTripLinksMax);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
  sink.ReclaimClosedLinks();
  RoundTripTimer timer;
  EXPECT_TRUE(DialSink(&sink, &timer).ok());
}

}  // namespace
}  // namespace strata
