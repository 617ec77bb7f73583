#include "shard/serving/async_sender.h"

#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(AsyncSender, WorksWhileItsOwnerContinues) {
  absl::Notification owner_continued;
  std::thread::id worked_on;
  AsyncSender sender;
  sender.Run([&] {
    owner_continued.WaitForNotification();
    worked_on = std::this_thread::get_id();
  });
  EXPECT_FALSE(sender.Wait(absl::Milliseconds(1)));
  owner_continued.Notify();
  EXPECT_TRUE(sender.Wait());
  EXPECT_NE(worked_on, std::thread::id());
  EXPECT_NE(worked_on, std::this_thread::get_id());
}

TEST(AsyncSender, RunsWorkInOrder) {
  std::vector<int> done;
  AsyncSender sender;
  for (int i = 0; i < 1000; ++i) {
    sender.Run([&done, i] { done.push_back(i); });
  }
  ASSERT_TRUE(sender.Wait());
  ASSERT_EQ(done.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(done[i], i);
}

TEST(AsyncSender, EndsAfterPendingWork) {
  absl::Notification may_end;
  bool is_done = false;
  std::thread other([&] { may_end.Notify(); });
  {
    AsyncSender sender;
    sender.Run([&] {
      may_end.WaitForNotification();
      is_done = true;
    });
  }
  other.join();
  EXPECT_TRUE(is_done);
}

TEST(AsyncSender, DoesNotWaitWithoutWork) { EXPECT_TRUE(AsyncSender().Wait()); }

}  // namespace
}  // namespace strata
