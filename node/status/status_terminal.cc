#include "node/status/status_terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace strata {
namespace {

// DEC's private modes, as in xterm: the alternate screen, no cursor, no wrapping at the edge.
constexpr absl::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
constexpr absl::string_view kLeave = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr absl::string_view kHome = "\x1b[H";

// Bytes that follow an Esc within this time belong to its sequence.
constexpr uint64_t kEscapeMs = 50;
constexpr std::chrono::milliseconds kLeaveTime(300);

class StatusTerminalImpl final : public StatusTerminal {
 public:
  StatusTerminalImpl(EventLoop* loop, Options options, Callbacks callbacks)
      : loop_(loop), options_(options), callbacks_(std::move(callbacks)) {}
  ~StatusTerminalImpl() override {
    if (entered_) Leave();
    key_watch_.reset();
    out_watch_.reset();
    if (draw_fd_ >= 0) close(draw_fd_);
  }

  absl::Status Start() {
    const char* kind = getenv("TERM");
    if (isatty(options_.out_fd) == 0) {
      return absl::FailedPreconditionError("stdout is no terminal");
    }
    if (kind != nullptr && absl::string_view(kind) == "dumb") {
      return absl::FailedPreconditionError("the terminal cannot draw (TERM=dumb)");
    }
    // A file description of its own: O_NONBLOCK must not apply to other users of the terminal.
    std::array<char, 256> name;
    if (ttyname_r(options_.out_fd, name.data(), name.size()) == 0) {
      draw_fd_ = open(name.data(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    }
    if (draw_fd_ < 0) draw_fd_ = fcntl(options_.out_fd, F_DUPFD_CLOEXEC, 0);
    if (draw_fd_ < 0) return absl::ErrnoToStatus(errno, "cannot open the terminal");
    has_keys_ = isatty(options_.in_fd) != 0;
    return Enter();
  }

  ftxui::Dimensions size() const override {
    winsize size = {};
    if (ioctl(options_.out_fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
      return {.dimx = 80, .dimy = 24};
    }
    return {.dimx = size.ws_col, .dimy = size.ws_row};
  }

  void Draw(absl::string_view frame) override {
    if (!entered_) return;
    next_ = absl::StrCat(kHome, frame);
    Write();
  }

  void WhileRestored(absl::AnyInvocable<void() &&> fn) override {
    Leave();
    std::move(fn)();
    if (!Enter().ok()) callbacks_.on_gone();
  }

 private:
  absl::Status Enter() {
    if (has_keys_) {
      if (tcgetattr(options_.in_fd, &before_) != 0) {
        return absl::ErrnoToStatus(errno, "cannot read the terminal's settings");
      }
      termios raw = before_;
      // No line buffer and no echo; Ctrl-C and Ctrl-Z stay signals, Ctrl-S would only stop drawing.
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      raw.c_iflag &= ~static_cast<tcflag_t>(IXON | ICRNL);
      raw.c_cc[VMIN] = 1;
      raw.c_cc[VTIME] = 0;
      if (tcsetattr(options_.in_fd, TCSANOW, &raw) != 0) {
        return absl::ErrnoToStatus(errno, "cannot set up the terminal");
      }
      key_watch_ = loop_->WatchFd(options_.in_fd, {.readable = true},
                                  [this](EventLoop::FdEvents) { ReadKeys(); });
    }
    entered_ = true;
    now_ = kEnter;
    Write();
    return absl::OkStatus();
  }

  void Leave() {
    entered_ = false;
    key_watch_.reset();
    out_watch_.reset();
    escape_timer_.reset();
    // This may cut a frame in the middle of a sequence; the Esc that follows ends it.
    now_ = kLeave;
    next_.clear();
    const auto until = std::chrono::steady_clock::now() + kLeaveTime;
    while (!WriteSome() && std::chrono::steady_clock::now() < until) {
      pollfd ready = {.fd = draw_fd_, .events = POLLOUT, .revents = 0};
      poll(&ready, 1, /*timeout=*/20);
    }
    if (has_keys_) tcsetattr(options_.in_fd, TCSANOW, &before_);
  }

  // True if nothing is left to write, or the terminal is closed.
  bool WriteSome() {
    while (!now_.empty()) {
      const ssize_t n = write(draw_fd_, now_.data(), now_.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return false;
      if (n <= 0) {
        now_.clear();
        return true;
      }
      now_.erase(0, static_cast<size_t>(n));
      if (now_.empty()) now_ = std::exchange(next_, "");
    }
    return true;
  }

  void Write() {
    if (now_.empty()) now_ = std::exchange(next_, "");
    if (WriteSome()) {
      out_watch_.reset();
    } else if (out_watch_ == nullptr) {
      out_watch_ =
          loop_->WatchFd(draw_fd_, {.writable = true}, [this](EventLoop::FdEvents) { Write(); });
    }
  }

  void ReadKeys() {
    std::array<char, 256> bytes;
    const ssize_t n = read(options_.in_fd, bytes.data(), bytes.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) {
      key_watch_.reset();
      callbacks_.on_gone();
      return;
    }
    escape_timer_.reset();
    Report(keys_.Read({bytes.data(), static_cast<size_t>(n)}));
    if (keys_.escape_waits()) {
      escape_timer_ = loop_->StartTimer({.delay_ms = kEscapeMs}, [this] { Report(keys_.Flush()); });
    }
  }

  void Report(const std::vector<Key>& keys) {
    if (!keys.empty()) callbacks_.on_keys(keys);
  }

  EventLoop* const loop_;
  const Options options_;
  Callbacks callbacks_;
  int draw_fd_ = -1;
  bool has_keys_ = false;
  bool entered_ = false;
  termios before_ = {};
  KeyReader keys_;
  std::string now_, next_;  // being written; the frame after it
  std::unique_ptr<EventLoop::Handle> key_watch_, out_watch_, escape_timer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StatusTerminal>> StatusTerminal::Open(EventLoop* loop,
                                                                     Options options,
                                                                     Callbacks callbacks) {
  auto terminal = std::make_unique<StatusTerminalImpl>(loop, options, std::move(callbacks));
  if (absl::Status status = terminal->Start(); !status.ok()) return status;
  return terminal;
}

}  // namespace strata
