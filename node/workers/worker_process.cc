#include "node/workers/worker_process.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "nlohmann/json.hpp"
#include "node/base/logging.h"
#include "shard/device/out_of_memory.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/request_log.h"

namespace strata {
namespace {

// How much of the last words goes into a status: one line that a person reads.
constexpr size_t kStatusWordsBytesMax = 1024;

std::string LastLines(absl::string_view text) {
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  size_t first = lines.size();
  for (size_t bytes = 0; first > 0; --first) {
    bytes += lines[first - 1].size() + 3;
    if (bytes > kStatusWordsBytesMax) break;
  }
  if (first == lines.size() && first > 0) {  // one line longer than that: its end
    const absl::string_view line = lines.back();
    return absl::StrCat("...", line.substr(line.size() - (kStatusWordsBytesMax - 3)));
  }
  lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(first));
  for (absl::string_view& line : lines) line = absl::StripAsciiWhitespace(line);
  return absl::StrJoin(lines, " | ");
}

// "host:port" from {"worker":{"address":"host:port","pid":1}}, empty when `line` is something else.
std::string AddressIn(absl::string_view line) {
  const auto json = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
  if (!json.is_object() || !json.contains("worker")) return "";
  const auto& worker = json["worker"];
  if (!worker.is_object() || !worker.contains("address") || !worker["address"].is_string()) {
    return "";
  }
  return worker["address"].get<std::string>();
}

int64_t SteadyMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string Seconds(int64_t ms) {
  return ms % 1000 == 0 ? absl::StrCat(ms / 1000, " s") : absl::StrCat(ms, " ms");
}

}  // namespace

absl::Status WorkerDeath::ToStatus(absl::string_view during) const {
  if (code == absl::StatusCode::kOk) return absl::UnavailableError("the worker was stopped");
  std::string message = absl::StrCat("the worker ", what, " ", during, " (", how, ")");
  if (!last_words.empty()) absl::StrAppend(&message, ": ", last_words);
  return absl::Status(code, message);
}

WorkerDeath DeathFromExit(const ChildExit& exit) {
  WorkerDeath death;
  death.last_words = LastLines(exit.last_words);
  death.code = SaysOutOfMemory(exit.last_words) ? absl::StatusCode::kResourceExhausted
                                                : absl::StatusCode::kAborted;
  death.of_machine_memory =
      exit.signal == SIGKILL || absl::StrContains(exit.last_words, "bad_alloc") ||
      absl::StrContains(exit.last_words, "ggml_aligned_malloc: insufficient memory");
  if (exit.signal == 0) {
    death.what = "exited";
    death.how = absl::StrCat("status ", exit.code);
    return death;
  }
  death.how = absl::StrCat("signal ", exit.signal, ", ", SignalName(exit.signal));
  switch (exit.signal) {
    case SIGABRT:
      death.what = "aborted";
      break;
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
      death.what = "crashed";
      break;
    case SIGKILL:
      death.what = "was killed";
      death.code = absl::StatusCode::kResourceExhausted;
      absl::StrAppend(&death.how, exit.out_of_memory ? ": the machine ran out of memory"
                                                     : ": perhaps out of memory");
      break;
    default:
      death.what = "was killed";
  }
  return death;
}

struct WorkerProcess::PingCall {
  grpc::ClientContext context;
  wire::PingRequest request;
  wire::PingResponse response;
};

WorkerProcess::WorkerProcess(EventLoop* loop, Options options, Observer* observer)
    : loop_(loop), options_(std::move(options)), observer_(observer) {}

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(EventLoop* loop,
                                                                    Options options,
                                                                    Observer* observer) {
  std::unique_ptr<WorkerProcess> worker(new WorkerProcess(loop, std::move(options), observer));
  WorkerProcess* self = worker.get();

  ChildProcess::Options child;
  child.program = self->options_.program;
  child.args = self->options_.args;
  // ggml would start a debugger to print a backtrace before it aborts: seconds, and the last words
  // would be addresses.
  child.env = {"GGML_NO_BACKTRACE=1"};
  child.stop_grace = absl::Milliseconds(self->options_.timeouts.stop_ms);
  child.on_stdout_line = [self](absl::string_view line) {
    const std::string address = AddressIn(line);
    if (!address.empty()) {
      self->Post([self, address] { self->OnAddress(address); });
    } else if (RequestLogOn()) {
      WriteLine(STDERR_FILENO, absl::StrCat(line, "\n"));  // its request log
    }
  };
  child.on_stderr_line = [label = self->options_.label,
                          all = self->options_.echo_stderr](absl::string_view line) {
    if (all || IsWarning(line)) EchoLine(label, line);
  };
  child.on_exit = [self](const ChildExit& exit) {
    self->Post([self, exit] { self->OnExit(exit); });
  };
  absl::StatusOr<std::unique_ptr<ChildProcess>> started = ChildProcess::Start(std::move(child));
  if (!started.ok()) return started.status();
  self->child_ = *std::move(started);

  const int64_t start_ms = self->options_.timeouts.start_ms;
  self->deadline_ =
      loop->StartTimer({.delay_ms = static_cast<uint64_t>(start_ms)}, [self, start_ms] {
        self->KillBecause("did not start", absl::StrCat("no address after ", Seconds(start_ms)));
      });
  return worker;
}

WorkerProcess::~WorkerProcess() {
  if (ping_ != nullptr) ping_->context.TryCancel();
  child_.reset();
  gate_.Wait();
  for (auto* checks : {&checks_sent_, &checks_waiting_}) {
    for (auto& fn : *checks) std::move(fn)(false);
  }
}

void WorkerProcess::Post(std::function<void()> fn) {
  loop_->Post([fn = std::move(fn), alive = std::weak_ptr<const char>(alive_)] {
    if (!alive.expired()) fn();
  });
}

void WorkerProcess::OnAddress(const std::string& address) {
  if (ready() || stopping_ || verdict_ != nullptr) return;
  deadline_.reset();
  stub_ = wire::Worker::NewStub(MakeQuietChannel(address));
  TickAfter(options_.timeouts.ping_every_ms);
  observer_->OnWorkerReady();
}

void WorkerProcess::Stop() {
  if (stopping_) return;
  stopping_ = true;
  tick_.reset();
  child_->Terminate();
  deadline_ = loop_->StartTimer({.delay_ms = static_cast<uint64_t>(options_.timeouts.stop_ms)},
                                [this] { child_->Kill(); });
}

void WorkerProcess::CheckAlive(absl::AnyInvocable<void(bool) &&> fn) {
  checks_waiting_.push_back(std::move(fn));
  SendPing();
}

void WorkerProcess::TickAfter(int64_t delay_ms) {
  tick_ = loop_->StartTimer({.delay_ms = static_cast<uint64_t>(delay_ms),
                             .repeat_ms = static_cast<uint64_t>(options_.timeouts.ping_every_ms)},
                            [this] { Tick(); });
}

void WorkerProcess::Refresh() {
  if (report_ms_ != 0 && SteadyMs() - report_ms_ >= options_.timeouts.ping_every_ms) SendPing();
}

void WorkerProcess::Watch() {
  if (tick_ == nullptr) return;  // not ready yet, or stopping
  if (std::exchange(idle_answers_, 0) < options_.timeouts.idle_pings) return;
  TickAfter(options_.timeouts.ping_every_ms);
  SendPing();
}

// Counts ticks rather than time: after this process itself was stopped for a while, the worker
// still gets its time to answer.
void WorkerProcess::Tick() {
  if (++silent_ticks_ * options_.timeouts.ping_every_ms > options_.timeouts.silent_ms) {
    KillBecause(
        "stopped answering",
        absl::StrCat("silent for ", Seconds(options_.timeouts.silent_ms), ", so it was killed"));
    return;
  }
  SendPing();
}

void WorkerProcess::SendPing() {
  if (ping_ != nullptr || !ready()) return;
  checks_sent_ = std::move(checks_waiting_);
  checks_waiting_.clear();
  ping_ = std::make_shared<PingCall>();
  ping_->context.set_deadline(DeadlineIn(absl::Milliseconds(options_.timeouts.silent_ms)));
  gate_.Enter();
  stub_->async()->Ping(&ping_->context, &ping_->request, &ping_->response,
                       [this, call = ping_](const grpc::Status& status) {
                         Post([this, call, status] { OnPing(status, call->response); });
                         gate_.Leave();
                       });
}

void WorkerProcess::OnPing(const grpc::Status& status, const wire::PingResponse& response) {
  ping_.reset();
  if (!status.ok()) {
    // Its exit or its silence will show why. Pinged again at the next tick.
    for (auto& fn : checks_sent_) checks_waiting_.push_back(std::move(fn));
    checks_sent_.clear();
    return;
  }
  silent_ticks_ = 0;
  busy_ = response.busy_ms() > 0 || response.steps_done() != report_.steps_done();
  report_ = response;
  report_ms_ = SteadyMs();
  const int64_t idle_pings = options_.timeouts.idle_pings;
  if (tick_ == nullptr) {  // stopping
  } else if (busy()) {
    if (idle_answers_ >= idle_pings) TickAfter(options_.timeouts.ping_every_ms);
    idle_answers_ = 0;
  } else if (++idle_answers_ >= idle_pings) {
    TickAfter(options_.timeouts.idle_ping_every_ms);
  }
  observer_->OnWorkerReport();
  const int64_t step_ms = options_.timeouts.step_ms * (loading_ ? kStepTimesLoading : 1);
  if (response.busy_ms() > step_ms) {
    KillBecause("hung",
                absl::StrCat("more than ", Seconds(step_ms), " on one step, so it was killed"));
  }
  Checks answered = std::move(checks_sent_);
  checks_sent_.clear();
  if (!checks_waiting_.empty()) SendPing();
  for (auto& fn : answered) std::move(fn)(true);
}

void WorkerProcess::KillBecause(absl::string_view what, absl::string_view how) {
  if (verdict_ != nullptr) return;
  verdict_ = std::make_unique<WorkerDeath>();
  verdict_->code = absl::StatusCode::kDeadlineExceeded;
  verdict_->what = what;
  verdict_->how = how;
  tick_.reset();
  deadline_.reset();
  child_->Kill();
}

void WorkerProcess::OnExit(const ChildExit& exit) {
  LOG(INFO) << options_.label << " (process " << exit.pid << ") " << exit.Words();
  tick_.reset();
  deadline_.reset();
  WorkerDeath death;
  if (verdict_ != nullptr) {
    death = *verdict_;
    death.last_words = LastLines(exit.last_words);
  } else if (!stopping_) {
    death = DeathFromExit(exit);
  }
  Checks unanswered = std::move(checks_sent_);
  for (auto& fn : checks_waiting_) unanswered.push_back(std::move(fn));
  checks_sent_.clear();
  checks_waiting_.clear();
  observer_->OnWorkerDied(death);  // may destroy this
  for (auto& fn : unanswered) std::move(fn)(false);
}

}  // namespace strata
