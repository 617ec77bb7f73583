#include "node/rpc/event_teller.h"

#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;

TEST(EventTeller, WhoDoesNotReadHoldsNothingUpAndHearsTheNewest) {
  absl::Notification asked, reads;
  std::vector<std::string> told;
  EventTeller<std::string> teller([&](const std::string& event) {
    if (told.empty()) {
      asked.Notify();
      reads.WaitForNotification();
    }
    told.push_back(event);
    return true;
  });
  EXPECT_TRUE(teller.Tell("note"));
  asked.WaitForNotification();
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(teller.Tell("stage 0: " + std::to_string(i), 0));
    EXPECT_TRUE(teller.Tell("stage 1: " + std::to_string(i), 1));
  }
  EXPECT_TRUE(teller.Tell("placed"));
  EXPECT_TRUE(teller.Tell("stage 1: of another plan", 1));
  reads.Notify();
  teller.Finish();
  EXPECT_THAT(told, ElementsAre("note", "stage 0: 999", "placed", "stage 1: of another plan"));
}

TEST(EventTeller, ManyNotesAreBounded) {
  absl::Notification asked, reads;
  size_t told = 0;
  EventTeller<std::string> teller([&](const std::string&) {
    if (told++ == 0) {
      asked.Notify();
      reads.WaitForNotification();
    }
    return true;
  });
  EXPECT_TRUE(teller.Tell("first"));
  asked.WaitForNotification();
  for (size_t i = 0; i < 2 * kEventsUntoldMax; ++i) EXPECT_TRUE(teller.Tell("more"));
  reads.Notify();
  teller.Finish();
  EXPECT_EQ(told, 1 + kEventsUntoldMax);
}

TEST(EventTeller, WhoHasGoneIsToldNothingMore) {
  size_t told = 0;
  EventTeller<std::string> teller([&](const std::string&) {
    ++told;
    return false;
  });
  EXPECT_TRUE(teller.Tell("note"));
  while (teller.Tell("more", 0)) {
  }
  teller.Finish();
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace strata
