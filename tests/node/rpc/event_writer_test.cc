#include "node/rpc/event_writer.h"

#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;

TEST(EventWriter, WhoDoesNotReadHoldsNothingUpAndHearsTheNewest) {
  absl::Notification asked, reads;
  std::vector<std::string> told;
  EventWriter<std::string> writer([&](const std::string& event) {
    if (told.empty()) {
      asked.Notify();
      reads.WaitForNotification();
    }
    told.push_back(event);
    return true;
  });
  EXPECT_TRUE(writer.Tell("note"));
  asked.WaitForNotification();
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(writer.Tell("stage 0: " + std::to_string(i), 0));
    EXPECT_TRUE(writer.Tell("stage 1: " + std::to_string(i), 1));
  }
  EXPECT_TRUE(writer.Tell("placed"));
  EXPECT_TRUE(writer.Tell("stage 1: of another plan", 1));
  reads.Notify();
  writer.Finish();
  EXPECT_THAT(told, ElementsAre("note", "stage 0: 999", "placed", "stage 1: of another plan"));
}

TEST(EventWriter, ManyNotesAreBounded) {
  absl::Notification asked, reads;
  size_t told = 0;
  EventWriter<std::string> writer([&](const std::string&) {
    if (told++ == 0) {
      asked.Notify();
      reads.WaitForNotification();
    }
    return true;
  });
  EXPECT_TRUE(writer.Tell("first"));
  asked.WaitForNotification();
  for (size_t i = 0; i < 2 * kEventsPendingMax; ++i) EXPECT_TRUE(writer.Tell("more"));
  reads.Notify();
  writer.Finish();
  EXPECT_EQ(told, 1 + kEventsPendingMax);
}

TEST(EventWriter, WhoHasGoneIsToldNothingMore) {
  size_t told = 0;
  EventWriter<std::string> writer([&](const std::string&) {
    ++told;
    return false;
  });
  EXPECT_TRUE(writer.Tell("note"));
  while (writer.Tell("more", 0)) {
  }
  writer.Finish();
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace strata
