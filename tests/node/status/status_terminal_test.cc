// On a pseudo-terminal: this test is the terminal.
#include "node/status/status_terminal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/base/event_loop.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr char kLeave[] = "\x1b[?7h\x1b[?25h\x1b[?1049l";

class StatusTerminalTest : public ::testing::Test {
 protected:
  StatusTerminalTest() {
    far_ = posix_openpt(O_RDWR | O_NOCTTY);
    EXPECT_EQ(grantpt(far_), 0);
    EXPECT_EQ(unlockpt(far_), 0);
    near_ = open(ptsname(far_), O_RDWR | O_NOCTTY);
    EXPECT_GE(near_, 0);
    fcntl(far_, F_SETFL, O_NONBLOCK);
    winsize size = {};
    size.ws_col = 90;
    size.ws_row = 30;
    ioctl(far_, TIOCSWINSZ, &size);
  }
  ~StatusTerminalTest() override {
    terminal_.reset();
    if (near_ >= 0) close(near_);
    if (far_ >= 0) close(far_);
  }

  void Open() {
    StatusTerminal::Callbacks callbacks;
    callbacks.on_keys = [this](const std::vector<Key>& keys) {
      keys_.insert(keys_.end(), keys.begin(), keys.end());
      if (keys_.size() >= keys_expected_) loop_->Stop();
    };
    callbacks.on_gone = [this] {
      gone_ = true;
      loop_->Stop();
    };
    auto terminal =
        StatusTerminal::Open(loop_.get(), {.in_fd = near_, .out_fd = near_}, std::move(callbacks));
    ASSERT_TRUE(terminal.ok()) << terminal.status();
    terminal_ = *std::move(terminal);
  }

  // Output that was drawn and not read yet.
  std::string Drawn() const {
    std::string all;
    std::array<char, 4096> bytes;
    ssize_t n = 0;
    while ((n = read(far_, bytes.data(), bytes.size())) > 0) {
      all.append(bytes.data(), static_cast<size_t>(n));
    }
    return all;
  }
  bool Cooked() const {
    termios now = {};
    EXPECT_EQ(tcgetattr(near_, &now), 0);
    return (now.c_lflag & ICANON) != 0 && (now.c_lflag & ECHO) != 0;
  }

  std::unique_ptr<EventLoop> loop_ = EventLoop::Create();
  int far_ = -1, near_ = -1;
  std::unique_ptr<StatusTerminal> terminal_;
  std::vector<Key> keys_;
  size_t keys_expected_ = 1;
  bool gone_ = false;
};

TEST_F(StatusTerminalTest, IsRestoredAtTheEnd) {
  EXPECT_TRUE(Cooked());
  Open();
  EXPECT_FALSE(Cooked());
  terminal_->Draw("a frame");
  terminal_.reset();
  EXPECT_TRUE(Cooked());
  const std::string drawn = Drawn();
  EXPECT_THAT(drawn, HasSubstr("\x1b[?1049h"));
  EXPECT_THAT(drawn, HasSubstr("\x1b[Ha frame"));
  EXPECT_THAT(drawn, EndsWith(kLeave));
}

TEST_F(StatusTerminalTest, ReportsKeysAndSize) {
  Open();
  EXPECT_EQ(terminal_->size().dimx, 90);
  EXPECT_EQ(terminal_->size().dimy, 30);
  keys_expected_ = 3;
  ASSERT_EQ(write(far_, "\x1b[Bj\x1b", 5), 5);  // the last one is the key itself
  loop_->Run();
  EXPECT_THAT(keys_, ElementsAre(Key::kDown, Key::kDown, Key::kQuit));
}

TEST_F(StatusTerminalTest, IsRestoredForAWhile) {
  Open();
  bool cooked = false;
  terminal_->WhileRestored([&] { cooked = Cooked(); });
  EXPECT_TRUE(cooked);
  EXPECT_FALSE(Cooked());
  terminal_->Draw("again");
  EXPECT_THAT(Drawn(), EndsWith("again"));
}

TEST_F(StatusTerminalTest, ATerminalThatReadsNothingBlocksNothing) {
  Open();
  const std::string frame(100'000, 'x');  // more than a terminal buffers
  for (int i = 0; i < 100; ++i) terminal_->Draw(frame);
  terminal_->Draw("the newest");
  loop_->Post([this] { loop_->Stop(); });
  loop_->Run();
  terminal_.reset();  // does not block for long
  EXPECT_TRUE(Cooked());
}

TEST_F(StatusTerminalTest, DrawsTheNewestFrameWhenTheTerminalReadsAgain) {
  Open();
  const std::string frame(100'000, 'x');
  for (int i = 0; i < 10; ++i) terminal_->Draw(frame);
  terminal_->Draw("the newest");
  std::string all;
  auto watch = loop_->WatchFd(far_, {.readable = true}, [&](EventLoop::FdEvents) {
    all += Drawn();
    if (all.ends_with("the newest")) loop_->Stop();
  });
  loop_->Run();
  EXPECT_LT(all.size(), 2 * frame.size());
  watch.reset();
}

TEST_F(StatusTerminalTest, ReportsThatTheTerminalWasClosed) {
  Open();
  close(far_);
  far_ = -1;
  loop_->Run();
  EXPECT_TRUE(gone_);
}

TEST(StatusTerminal, APipeIsNotATerminal) {
  std::array<int, 2> ends;
  ASSERT_EQ(pipe(ends.data()), 0);
  const auto loop = EventLoop::Create();
  EXPECT_EQ(
      StatusTerminal::Open(loop.get(), {.in_fd = ends[0], .out_fd = ends[1]}, {}).status().code(),
      absl::StatusCode::kFailedPrecondition);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace strata
