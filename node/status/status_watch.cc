#include "node/status/status_watch.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ftxui/screen/screen.hpp"
#include "nlohmann/json.hpp"
#include "node/base/exit_code.h"
#include "node/base/json_line.h"
#include "node/base/process_setup.h"
#include "node/base/standard_output.h"
#include "node/status/status_source.h"
#include "node/status/status_terminal.h"
#include "node/status/status_view.h"
#include "transport/base/event_loop.h"

namespace strata {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kEvery(1);
constexpr uint64_t kRedrawMs = 500;
// How long quitting waits for a call in flight.
constexpr absl::Duration kQuitTime = absl::Milliseconds(300);

struct PollResult {
  absl::StatusOr<ClusterSnapshot> report;
  std::string address;              // of the node that gave it
  SteadyClock::time_point started;  // when the call began
};

// Fetches reports periodically, on a thread of its own.
class Poller {
 public:
  // Calls `on_result` on that thread.
  Poller(std::unique_ptr<StatusSource> source, absl::AnyInvocable<void(PollResult)> on_result)
      : source_(std::move(source)), on_result_(std::move(on_result)), thread_([this] { Run(); }) {}
  // Blocks until no call is in flight.
  ~Poller() {
    Stop(absl::ZeroDuration());
    thread_.join();
  }

  // Waits for at most `time`; true if no call is in flight any more.
  bool Stop(absl::Duration time) {
    absl::MutexLock lock(mu_);
    stop_ = true;
    return mu_.AwaitWithTimeout(absl::Condition(&done_), time);
  }

 private:
  void Run() {
    while (true) {
      const auto started = SteadyClock::now();
      absl::StatusOr<ClusterSnapshot> report = source_->Fetch();
      {
        absl::MutexLock lock(mu_);
        if (!stop_) {
          // Under the lock: after Stop() the receiver of the result may be destroyed.
          on_result_(
              {.report = std::move(report), .address = source_->address(), .started = started});
        }
        const auto next = started + kEvery;
        mu_.AwaitWithTimeout(absl::Condition(&stop_), absl::FromChrono(next - SteadyClock::now()));
        if (stop_) {
          done_ = true;
          return;
        }
      }
    }
  }

  const std::unique_ptr<StatusSource> source_;
  absl::AnyInvocable<void(PollResult)> on_result_;
  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// The contents of the screen. Loop thread only.
class Watch {
 public:
  Watch(EventLoop* loop, std::string address) : loop_(loop), address_(std::move(address)) {}

  absl::Status Start() {
    StatusTerminal::Callbacks callbacks;
    callbacks.on_keys = [this](const std::vector<Key>& keys) { OnKeys(keys); };
    callbacks.on_gone = [this] { loop_->Stop(); };
    auto terminal = StatusTerminal::Open(loop_, {}, std::move(callbacks));
    if (!terminal.ok()) return terminal.status();
    terminal_ = *std::move(terminal);
    std::vector<int> ends = EndSignals();
    ends.push_back(SIGQUIT);
    for (const int signum : ends) {
      handles_.push_back(loop_->OnSignal(signum, [this] { loop_->Stop(); }));
    }
    handles_.push_back(loop_->OnSignal(SIGTSTP, [this] { Suspend(); }));
    handles_.push_back(loop_->OnSignal(SIGWINCH, [this] { Draw(); }));
    handles_.push_back(
        loop_->StartTimer({.delay_ms = kRedrawMs, .repeat_ms = kRedrawMs}, [this] { Draw(); }));
    Draw();
    return absl::OkStatus();
  }

  void OnResult(PollResult result) {
    if (!result.report.ok()) {
      problem_ = result.report.status().message();
    } else {
      problem_.clear();
      before_ = std::move(report_);
      report_ = std::make_unique<ClusterSnapshot>(*std::move(result.report));
      DisambiguateNodeNames(report_.get());
      models_ = ModelsOf(*report_, before_.get());
      started_ = result.started;
      if (address_ != result.address) gone_address_ = std::exchange(address_, result.address);
    }
    Draw();
  }

 private:
  void OnKeys(const std::vector<Key>& keys) {
    for (const Key key : keys) {
      switch (key) {
        case Key::kQuit:
          loop_->Stop();
          return;
        case Key::kUp:
          Move(-1);
          break;
        case Key::kDown:
          Move(1);
          break;
        case Key::kPageUp:
          Move(-Page());
          break;
        case Key::kPageDown:
          Move(Page());
          break;
        case Key::kHome:
          first_line_ = 0;
          break;
        case Key::kEnd:
          first_line_ = INT32_MAX;
          break;
      }
    }
    Draw();
  }

  int64_t Page() const { return std::max<int64_t>(1, page_lines_ - 1); }
  void Move(int64_t lines) { first_line_ = std::max<int64_t>(0, first_line_ + lines); }

  void Suspend() {
    terminal_->WhileRestored([] { kill(getpid(), SIGSTOP); });
    drawn_.clear();
    Draw();
  }

  void Draw() {
    StatusView view;
    view.report = report_.get();
    view.models = models_;
    view.address = address_;
    view.gone_address = gone_address_;
    view.problem = problem_;
    view.first_line = static_cast<size_t>(first_line_);
    view.age_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(SteadyClock::now() - started_)
            .count();
    const ftxui::Dimensions size = terminal_->size();
    const StatusScreen drawing = DrawStatus(view, size);
    first_line_ = static_cast<int64_t>(drawing.first_line);
    page_lines_ = static_cast<int64_t>(drawing.page_lines);
    ftxui::Screen screen(size.dimx, size.dimy);
    ftxui::Render(screen, drawing.element);
    std::string frame = screen.ToString();
    if (frame == drawn_) return;
    terminal_->Draw(frame);
    drawn_ = std::move(frame);
  }

  EventLoop* const loop_;
  std::unique_ptr<StatusTerminal> terminal_;
  std::vector<std::unique_ptr<EventLoop::Handle>> handles_;
  std::string address_;       // of the node that gave the report, or is called
  std::string gone_address_;  // of the node before, which is gone
  std::string problem_;       // why there is no newer report
  std::unique_ptr<ClusterSnapshot> report_, before_;
  std::vector<ModelView> models_;
  SteadyClock::time_point started_ = SteadyClock::now();
  int64_t first_line_ = 0, page_lines_ = 1;
  std::string drawn_;
};

}  // namespace

absl::Status RunStatusWatch(const StatusOptions& options) {
  if (isatty(STDOUT_FILENO) == 0) {
    return absl::InvalidArgumentError(
        "--watch draws on a terminal, and stdout is none: use 'strata status', or --watch --json");
  }
  absl::StatusOr<std::unique_ptr<StatusSource>> source = StatusSource::Connect(options.client);
  if (!source.ok()) return source.status();
  const char* no_color = getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') {
    ftxui::Terminal::SetColorSupport(ftxui::Terminal::Palette1);
  }

  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  auto watch = std::make_unique<Watch>(loop.get(), (*source)->address());
  if (absl::Status status = watch->Start(); !status.ok()) return status;
  Poller poller(*std::move(source), [&loop, &watch](PollResult result) {
    loop->Post(
        [&watch, result = std::move(result)]() mutable { watch->OnResult(std::move(result)); });
  });
  loop->Run();
  const bool done = poller.Stop(absl::ZeroDuration());
  watch.reset();  // restore the terminal first
  // The user must not wait for a call to a node that does not answer.
  if (!done && !poller.Stop(kQuitTime)) _exit(kExitOk);
  return absl::OkStatus();
}

absl::Status RunStatusLines(const StatusOptions& options) {
  signal(SIGPIPE, SIG_IGN);  // a closed stdout ends this, and is no error
  absl::StatusOr<std::unique_ptr<StatusSource>> source = StatusSource::Connect(options.client);
  if (!source.ok()) return source.status();
  while (true) {
    const auto next = SteadyClock::now() + kEvery;
    const absl::StatusOr<ClusterSnapshot> report = (*source)->Fetch();
    const std::string line =
        JsonLine(report.ok() ? StatusJson(*report, LoadedModels((*source)->address()))
                             : nlohmann::json{{"error", std::string(report.status().message())}});
    if (!WriteToStdout(line).ok()) return absl::OkStatus();
    std::this_thread::sleep_until(next);
  }
}

}  // namespace strata
