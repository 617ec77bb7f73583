// Processes that die, and those that are left: of a demo that is interrupted or killed, or that
// loses a node or a worker and goes on.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/processes.h"
#include "tests/support/program.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A demo that writes until it is stopped, caught in the middle of its output.
class Failure : public ::testing::Test {
 protected:
  void SetUp() override {
    // The context is long enough that the sequence does not end on its own within the test.
    program_ = std::make_unique<Program>(std::vector<std::string>{
        "demo", "--model", STRATA_DEMO_MODEL, "--nodes", "3", "--ctx", "60000", "--max-tokens",
        "50000", "--ignore-eos", "--prompt", "One\n"});
    ASSERT_EQ(program_->FirstLine(), "One") << program_->err();
    below_ = Descendants((*program_)->pid());
    nodes_ = OfVerb(below_, "node");
    workers_ = OfVerb(below_, "worker");
    ASSERT_THAT(nodes_, SizeIs(3));
    ASSERT_THAT(workers_, SizeIs(3));
  }
  void TearDown() override { EXPECT_THAT(StillRunning(below_, absl::Seconds(20)), IsEmpty()); }

  // In the middle of a step for certain: the worker is stopped, and the sequence waits for it.
  pid_t StoppedWorker() {
    kill(workers_[1], SIGSTOP);
    return workers_[1];
  }

  // The demo writes more than what was in flight, until it is interrupted.
  void ExpectItGoesOn() {
    const size_t n_lines = program_->out_lines().size();
    const auto goes_on = [&] { return program_->out_lines().size() > n_lines + 1; };
    const SteadyTime until = SteadyTime::Now() + Program::kLong;
    while (!goes_on() && SteadyTime::Now() < until &&
           !(*program_)->WaitForExit(absl::Milliseconds(20))) {
    }
    EXPECT_TRUE(goes_on()) << program_->err();
    below_ = Descendants((*program_)->pid());
    kill((*program_)->pid(), SIGINT);
    EXPECT_EQ(program_->ExitStatus(), 130) << program_->err();
  }

  std::unique_ptr<Program> program_;
  std::vector<pid_t> below_, nodes_, workers_;
};

TEST_F(Failure, CtrlCStopsEverything) {
  kill((*program_)->pid(), SIGINT);
  EXPECT_EQ(program_->ExitStatus(), 130);
  EXPECT_THAT(program_->err(), HasSubstr("interrupted"));
}

TEST_F(Failure, CtrlCTwiceDoesNotWaitForAWorkerThatHangs) {
  StoppedWorker();
  kill((*program_)->pid(), SIGINT);
  absl::SleepFor(absl::Milliseconds(100));  // so that the second is not taken for the first
  kill((*program_)->pid(), SIGINT);
  EXPECT_EQ(program_->ExitStatus(), 130);
}

// Ctrl-Z in a terminal, then `fg`; a laptop that sleeps.
TEST_F(Failure, ADemoThatIsStoppedAndContinuedGoesOn) {
  std::vector<pid_t> all = below_;
  all.push_back((*program_)->pid());
  for (const pid_t pid : all) kill(pid, SIGSTOP);
  absl::SleepFor(absl::Seconds(4));  // longer than any of them may be silent
  for (const pid_t pid : all) kill(pid, SIGCONT);
  ExpectItGoesOn();
}

TEST_F(Failure, NothingOutlivesAKilledDemo) {
  kill((*program_)->pid(), SIGKILL);
  EXPECT_TRUE((*program_)->WaitForExit(Program::kLong));
}

TEST_F(Failure, ADemoGoesOnWithoutAKilledWorker) {
  kill(StoppedWorker(), SIGKILL);
  ExpectItGoesOn();
}

TEST_F(Failure, ADemoGoesOnWithoutAWorkerThatAbortsInAStep) {
  const pid_t worker = StoppedWorker();
  kill(worker, SIGABRT);
  kill(worker, SIGCONT);
  ExpectItGoesOn();
}

TEST_F(Failure, ADemoGoesOnWithoutAHungWorker) {
  StoppedWorker();
  ExpectItGoesOn();
}

TEST_F(Failure, ADemoGoesOnWithoutAKilledNode) {
  kill(nodes_[2], SIGKILL);
  ExpectItGoesOn();
}

TEST_F(Failure, AKilledFirstNodeEndsTheDemo) {  // whose client it is
  kill(nodes_[0], SIGKILL);
  EXPECT_EQ(program_->ExitStatus(), 5);
  EXPECT_THAT(program_->err(), HasSubstr("no node answers"));
}

TEST(FullDisk, EndsTheDemoWithOneLine) {
  // /dev/full takes nothing, as a full disk does.
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  if (full < 0) GTEST_SKIP() << "no /dev/full on this system";
  close(full);
  const std::string command = absl::StrCat("exec ", STRATA_PROGRAM, " demo --model ",
                                           STRATA_DEMO_MODEL, " --max-tokens 4 >/dev/full");
  ChildProcess::Options options;
  options.program = "/bin/sh";
  options.args = {"sh", "-c", command};
  auto shell = ChildProcess::Start(std::move(options));
  ASSERT_TRUE(shell.ok()) << shell.status();
  ASSERT_TRUE((*shell)->WaitForExit(Program::kLong));
  EXPECT_NE((*shell)->exit().code, 0);
  EXPECT_THAT((*shell)->exit().last_words, HasSubstr("cannot write"));
}

}  // namespace
}  // namespace strata
