#include "node/rpc/event_writer.h"

#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;

TEST(EventWriter, ASlowClientDelaysNoWriterAndGetsTheNewestEvents) {
  absl::Notification writing, reads;
  std::vector<std::string> written;
  EventWriter<std::string> writer([&](const std::string& event) {
    if (written.empty()) {
      writing.Notify();
      reads.WaitForNotification();
    }
    written.push_back(event);
    return true;
  });
  EXPECT_TRUE(writer.Write("note"));
  writing.WaitForNotification();
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(writer.Write("stage 0: " + std::to_string(i), 0));
    EXPECT_TRUE(writer.Write("stage 1: " + std::to_string(i), 1));
  }
  EXPECT_TRUE(writer.Write("placed"));
  EXPECT_TRUE(writer.Write("stage 1: of another plan", 1));
  reads.Notify();
  writer.Finish();
  EXPECT_THAT(written, ElementsAre("note", "stage 0: 999", "placed", "stage 1: of another plan"));
}

TEST(EventWriter, PendingEventsAreBounded) {
  absl::Notification writing, reads;
  size_t written = 0;
  EventWriter<std::string> writer([&](const std::string&) {
    if (written++ == 0) {
      writing.Notify();
      reads.WaitForNotification();
    }
    return true;
  });
  EXPECT_TRUE(writer.Write("first"));
  writing.WaitForNotification();
  for (size_t i = 0; i < 2 * kEventsPendingMax; ++i) EXPECT_TRUE(writer.Write("more"));
  reads.Notify();
  writer.Finish();
  EXPECT_EQ(written, 1 + kEventsPendingMax);
}

TEST(EventWriter, WritesNothingMoreOnceTheClientHasGone) {
  size_t written = 0;
  EventWriter<std::string> writer([&](const std::string&) {
    ++written;
    return false;
  });
  EXPECT_TRUE(writer.Write("note"));
  while (writer.Write("more", 0)) {
  }
  writer.Finish();
  EXPECT_EQ(written, 1);
}

}  // namespace
}  // namespace strata
