#include "node/workers/sleep_inhibitor.h"

#include <fstream>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_event_loop.h"
#include "tests/support/log_capture.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

class SleepInhibitorTest : public ::testing::Test {
 protected:
  void Start(const std::string& script) {
    inhibitor_ = std::make_unique<SleepInhibitor>(
        &loop_, [this] { return steps_; }, std::vector<std::string>{"/bin/sh", "-c", script});
  }
  // Lines of the file, as soon as there are `wanted`.
  int Lines(const std::string& path, int wanted) {
    int lines = 0;
    for (int i = 0; i < 600 && lines < wanted; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      lines = 0;
      std::ifstream file(path);
      for (std::string line; std::getline(file, line);) ++lines;
    }
    return lines;
  }

  FakeClock clock_;
  FakeEventLoop loop_{&clock_};
  uint64_t steps_ = 0;
  std::unique_ptr<SleepInhibitor> inhibitor_;
};

TEST_F(SleepInhibitorTest, HoldsWhileStagesComputeAndAMinuteMore) {
  const std::string log = strata::testing::MakeTestFolder() + "/log";
  Start("echo begins >> " + log + "; cat; echo ends >> " + log);
  clock_.AdvanceMs(60'000);
  EXPECT_FALSE(inhibitor_->holds()) << "nothing was computed";
  for (int i = 0; i < 20; ++i) {
    ++steps_;
    clock_.AdvanceMs(10'000);
    EXPECT_TRUE(inhibitor_->holds());
  }
  EXPECT_EQ(Lines(log, 1), 1) << "one program for all that time";
  clock_.AdvanceMs(50'000);
  EXPECT_TRUE(inhibitor_->holds());
  clock_.AdvanceMs(11'000);
  EXPECT_FALSE(inhibitor_->holds());
  steps_ += 7;
  clock_.AdvanceMs(11'000);
  EXPECT_TRUE(inhibitor_->holds()) << "as often as needed";
}

TEST_F(SleepInhibitorTest, ACommandThatFailsIsSaidOnce) {
  strata::testing::LogCapture log;
  Start("echo 'Access denied' >&2; exit 1");
  for (int i = 0; i < 50; ++i) {
    ++steps_;
    clock_.AdvanceMs(10'000);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const auto said = log.Lines("--keep-awake");
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("exited with status 1: Access denied"), std::string::npos) << said[0];
  EXPECT_FALSE(inhibitor_->holds());
}

}  // namespace
}  // namespace strata
