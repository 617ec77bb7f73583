#include "node/base/cached_fetch.h"

#include <atomic>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;

// The value that a call of Get() gets.
template <typename T>
absl::StatusOr<T> Await(CachedFetch<T>* from, absl::Duration age_max) {
  absl::StatusOr<T> got;
  absl::Notification done;
  from->Get(age_max, [&](const absl::StatusOr<T>& value) {
    got = value;
    done.Notify();
  });
  done.WaitForNotification();
  return got;
}

TEST(CachedFetch, FetchesAgainWhatIsTooOld) {
  int fetches = 0;
  CachedFetch<int> value({.waiting_max = 1}, [&] { return ++fetches; });
  EXPECT_THAT(Await(&value, absl::InfiniteDuration()), IsOkAndHolds(1));
  EXPECT_THAT(Await(&value, absl::InfiniteDuration()), IsOkAndHolds(1));
  EXPECT_THAT(Await(&value, -absl::Seconds(1)), IsOkAndHolds(2));
}

TEST(CachedFetch, DoesNotKeepAnError) {
  bool fails = true;
  CachedFetch<int> value({.waiting_max = 1}, [&]() -> absl::StatusOr<int> {
    if (fails) return absl::NotFoundError("none");
    return 1;
  });
  EXPECT_THAT(Await(&value, absl::InfiniteDuration()), StatusIs(absl::StatusCode::kNotFound));
  fails = false;
  EXPECT_THAT(Await(&value, absl::InfiniteDuration()), IsOkAndHolds(1));
}

TEST(CachedFetch, FetchesOnceForAllWhoWait) {
  std::atomic<int> fetches{0};
  absl::Notification begun, may_end;
  CachedFetch<int> value({.waiting_max = 2}, [&] {
    if (++fetches == 1) {
      begun.Notify();
      may_end.WaitForNotification();
    }
    return fetches.load();
  });
  absl::BlockingCounter done(3);
  std::vector<int> got(3);
  const auto get = [&](size_t i) {
    value.Get(absl::ZeroDuration(), [&, i](const absl::StatusOr<int>& fetched) {
      got[i] = fetched.value_or(0);
      done.DecrementCount();
    });
  };
  get(0);
  begun.WaitForNotification();
  get(1);
  get(2);
  EXPECT_THAT(Await(&value, absl::ZeroDuration()), StatusIs(absl::StatusCode::kResourceExhausted));
  may_end.Notify();
  done.Wait();
  EXPECT_THAT(got, ::testing::ElementsAre(1, 2, 2));
}

TEST(CachedFetch, FailsCallsOnceItIsStopped) {
  CachedFetch<int> value({.waiting_max = 1}, [] { return 1; });
  value.Stop();
  EXPECT_THAT(Await(&value, absl::InfiniteDuration()), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace strata
