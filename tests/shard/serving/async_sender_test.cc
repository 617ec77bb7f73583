#include "shard/serving/async_sender.h"

#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(AsyncSender, WorksWhileItsOwnerGoesOn) {
  absl::Notification owner_went_on;
  std::thread::id worked_on;
  AsyncSender side;
  side.Run([&] {
    owner_went_on.WaitForNotification();
    worked_on = std::this_thread::get_id();
  });
  EXPECT_FALSE(side.Wait(absl::Milliseconds(1)));
  owner_went_on.Notify();
  EXPECT_TRUE(side.Wait());
  EXPECT_NE(worked_on, std::thread::id());
  EXPECT_NE(worked_on, std::this_thread::get_id());
}

TEST(AsyncSender, DoesOneAfterTheOther) {
  std::vector<int> done;
  AsyncSender side;
  for (int i = 0; i < 1000; ++i) {
    side.Run([&done, i] { done.push_back(i); });
  }
  ASSERT_TRUE(side.Wait());
  ASSERT_EQ(done.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(done[i], i);
}

TEST(AsyncSender, EndsBehindWhatWasHandedOver) {
  absl::Notification may_end;
  bool is_done = false;
  std::thread other([&] { may_end.Notify(); });
  {
    AsyncSender side;
    side.Run([&] {
      may_end.WaitForNotification();
      is_done = true;
    });
  }
  other.join();
  EXPECT_TRUE(is_done);
}

TEST(AsyncSender, WaitsForNothingWhereNothingWasHandedOver) { EXPECT_TRUE(AsyncSender().Wait()); }

}  // namespace
}  // namespace strata
