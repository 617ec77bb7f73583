// `strata status --watch` as a person runs it: this test is the node that it calls, and the
// terminal.
#include "node/status/status_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/node/daemon/node_fixture.h"
#include "tests/support/program.h"

extern char** environ;

namespace strata {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::RunningNode;

constexpr char kLeave[] = "\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr absl::Duration kLong = absl::Seconds(60);

// The program with all its streams on `fd`, or only stdout.
struct SpawnOptions {
  int fd = -1;
  bool only_stdout = false;
};
pid_t Spawn(std::vector<std::string> args, SpawnOptions options) {
  args.insert(args.begin(), "strata");
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (!options.only_stdout) {
    posix_spawn_file_actions_adddup2(&actions, options.fd, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, options.fd, STDERR_FILENO);
  }
  posix_spawn_file_actions_adddup2(&actions, options.fd, STDOUT_FILENO);
  pid_t pid = 0;
  EXPECT_EQ(posix_spawn(&pid, STRATA_PROGRAM, &actions, nullptr, argv.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

class StatusWatch : public ::testing::Test {
 protected:
  StatusWatch() {
    setenv("TERM", "xterm", 1);
    far_ = posix_openpt(O_RDWR | O_NOCTTY);
    fcntl(far_, F_SETFD, FD_CLOEXEC);
    EXPECT_EQ(grantpt(far_), 0);
    EXPECT_EQ(unlockpt(far_), 0);
    near_ = open(ptsname(far_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    EXPECT_GE(near_, 0);
    fcntl(far_, F_SETFL, O_NONBLOCK);
    winsize size = {};
    size.ws_col = 80;
    size.ws_row = 24;
    ioctl(far_, TIOCSWINSZ, &size);
  }
  ~StatusWatch() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(near_);
    close(far_);
  }

  void Start() {
    pid_ = Spawn({"status", "--watch", "--open", "--node", node_.address()}, {.fd = near_});
  }

  // Reads until `text` has been drawn.
  bool WaitFor(const std::string& text) {
    const absl::Time until = absl::Now() + kLong;
    while (!absl::StrContains(drawn_, text)) {
      pollfd ready = {.fd = far_, .events = POLLIN, .revents = 0};
      poll(&ready, 1, /*timeout=*/1'000);
      Drain();
      if (absl::Now() > until) return false;
    }
    return true;
  }
  void Drain() {
    std::array<char, 4096> bytes;
    ssize_t n = 0;
    while ((n = read(far_, bytes.data(), bytes.size())) > 0) {
      drawn_.append(bytes.data(), static_cast<size_t>(n));
    }
  }

  int Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
    Drain();
    return status;
  }
  bool Cooked() const {
    termios now = {};
    EXPECT_EQ(tcgetattr(near_, &now), 0);
    return (now.c_lflag & ICANON) != 0 && (now.c_lflag & ECHO) != 0;
  }

  RunningNode node_{"/no/such/program"};
  int far_ = -1, near_ = -1;
  pid_t pid_ = 0;
  std::string drawn_;
};

TEST_F(StatusWatch, DrawsTheClusterUntilAKeyQuits) {
  Start();
  ASSERT_TRUE(WaitFor("report of " + node_.address())) << drawn_;
  EXPECT_THAT(drawn_, HasSubstr("node-2"));
  EXPECT_FALSE(Cooked());
  ASSERT_EQ(write(far_, "q", 1), 1);
  EXPECT_EQ(Wait(), 0);
  EXPECT_TRUE(Cooked());
  EXPECT_THAT(drawn_, EndsWith(kLeave));
}

TEST_F(StatusWatch, RestoresTheTerminalOnSignals) {
  for (const int signum : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    drawn_.clear();
    Start();
    ASSERT_TRUE(WaitFor("report of")) << drawn_;
    kill(pid_, signum);
    EXPECT_EQ(Wait(), 0) << strsignal(signum);
    EXPECT_TRUE(Cooked()) << strsignal(signum);
    EXPECT_THAT(drawn_, EndsWith(kLeave)) << strsignal(signum);
  }
}

TEST_F(StatusWatch, ShowsThatTheNodeIsGoneAndStillQuits) {
  Start();
  ASSERT_TRUE(WaitFor("report of")) << drawn_;
  const std::string address = node_.address();
  node_.Stop();
  ASSERT_TRUE(WaitFor("old: no node answers at " + address + "; trying again")) << drawn_;
  ASSERT_EQ(write(far_, "\x1b", 1), 1);
  EXPECT_EQ(Wait(), 0);
  EXPECT_TRUE(Cooked());
}

TEST_F(StatusWatch, RestoresTheTerminalWhileItIsStopped) {
  Start();
  ASSERT_TRUE(WaitFor("report of")) << drawn_;
  kill(pid_, SIGTSTP);
  int status = 0;
  ASSERT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_TRUE(Cooked());
  Drain();
  EXPECT_THAT(drawn_, EndsWith(kLeave));
  drawn_.clear();
  kill(pid_, SIGCONT);
  ASSERT_TRUE(WaitFor("report of")) << drawn_;
  EXPECT_FALSE(Cooked());
  kill(pid_, SIGTERM);
  EXPECT_EQ(Wait(), 0);
}

TEST_F(StatusWatch, WritesLinesUntilStdoutIsClosed) {
  std::array<int, 2> ends;
  ASSERT_EQ(pipe(ends.data()), 0);
  fcntl(ends[0], F_SETFD, FD_CLOEXEC);  // else the program would read its own lines
  pid_ = Spawn({"status", "--watch", "--open", "--json", "--node", node_.address()},
               {.fd = ends[1], .only_stdout = true});
  close(ends[1]);
  std::string text;
  char byte = 0;
  for (int lines = 0; lines < 2 && read(ends[0], &byte, 1) == 1;) {
    text += byte;
    if (byte != '\n') continue;
    const auto json = nlohmann::json::parse(text, nullptr, false);
    ASSERT_TRUE(json.is_object()) << text;
    EXPECT_EQ(json["nodes"][0]["name"], "node-2");
    text.clear();
    ++lines;
  }
  close(ends[0]);
  EXPECT_EQ(Wait(), 0);
}

TEST(StatusWatchOptions, NeedATerminalOrJson) {
  Program program({"status", "--watch"});
  EXPECT_EQ(program.ExitStatus(), 2);
  EXPECT_THAT(program.err(), HasSubstr("stdout is none: use 'strata status', or --watch --json"));
  EXPECT_EQ(program.out(), "");
}

}  // namespace
}  // namespace strata
