#include "node/chat/template_pool.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <optional>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "node/workers/child_process.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

// From its start to the first byte that it reads; machines that load a model meanwhile are slow.
constexpr absl::Duration kStartTime = absl::Seconds(20);
// As many times its processor time a template has on the clock, on a machine that is busy.
constexpr int kWallTimes = 4;
// One that keeps more of its memory is replaced: minja's macros and contexts hold each other.
constexpr uint64_t kKeptPart = 4;  // of the limit

// Fewer turns for a long prompt.
constexpr int kSendBufferBytes = 1 << 20;

std::string TooSlow(const TemplateLimits& limits) {
  return absl::StrCat("takes more than ", absl::FormatDuration(absl::Milliseconds(limits.time_ms)));
}

absl::Status NoProcess(absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("chat templates have no process to run in: ", why));
}

// What a template did that ended its process.
std::string DeedOf(const ChildExit& exit, const TemplateLimits& limits) {
  if (exit.code == kTemplateMemoryExit) {
    return absl::StrCat("needs more than ", limits.memory_bytes >> 20, " MiB of memory");
  }
  if (exit.code == kTemplateTimeExit) return TooSlow(limits);
  return absl::StrCat("nests or calls itself too deeply, or is broken in another way: its process ",
                      exit.Words());
}

// Of what a client sent.
size_t BytesOf(const TemplateRequest& question) {
  size_t bytes = 0;
  for (const ChatMessage& message : question.messages) {
    bytes += sizeof(message) + message.content.size();
    for (const ChatToolCall& call : message.calls) bytes += sizeof(call) + call.arguments.size();
  }
  for (const ChatTool& tool : question.tools.list) bytes += sizeof(tool) + tool.json.size();
  return bytes;
}

}  // namespace

// One child and the socket to it. One thread at a time, but for Cut().
class TemplatePool::Process {
 public:
  static absl::StatusOr<std::unique_ptr<Process>> Start(const Options& options) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) {
      return absl::ErrnoToStatus(errno, "socketpair");
    }
    for (int socket : sockets) {
      fcntl(socket, F_SETFD, FD_CLOEXEC);
      setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof(kSendBufferBytes));
    }
    auto process = std::unique_ptr<Process>(new Process(sockets[0]));
    auto child = ChildProcess::Start(
        {.program = options.program.empty() ? OwnProgram() : options.program,
         .args = {"strata", "template", "--time", absl::StrCat(options.limits.time_ms), "--memory",
                  absl::StrCat(options.limits.memory_bytes)},
         .socket = sockets[1]});
    close(sockets[1]);
    if (!child.ok()) return child.status();
    process->child_ = *std::move(child);
    return process;
  }
  ~Process() {
    if (child_ != nullptr) child_->Kill();
    child_.reset();
    close(socket_);
  }

  int socket() const { return socket_; }
  // Any thread, while it lives: whoever reads or writes is told that nobody is there.
  void Cut() { shutdown(socket_, SHUT_RDWR); }
  // How it ended; it is killed if it has not by then.
  const ChildExit& End() {
    if (!child_->WaitForExit(absl::Milliseconds(500))) child_->Kill();
    child_->WaitForExit(absl::InfiniteDuration());
    return child_->exit();
  }

 private:
  explicit Process(int socket) : socket_(socket) {}

  const int socket_;
  std::unique_ptr<ChildProcess> child_;
};

TemplatePool::TemplatePool(Options options)
    : options_(std::move(options)),
      turns_({.processes = options_.processes_max, .waiting_max = options_.waiting_max}) {
  for (size_t i = 0; i < options_.processes_max; ++i) threads_.emplace_back([this] { Run(); });
}

TemplatePool::~TemplatePool() {
  std::map<TemplateTurns::Id, Task> unheard;
  {
    absl::MutexLock lock(mu_);
    stopped_ = true;
    unheard.swap(waiting_);
    for (Process* process : processes_) process->Cut();
  }
  for (std::thread& thread : threads_) thread.join();
}

void TemplatePool::Render(TemplateTurns::Whose whose, TemplateRequest question, OnPrompt then) {
  std::string key = question.source.Key();
  const size_t bytes = BytesOf(question);
  absl::Status status;
  {
    absl::MutexLock lock(mu_);
    const auto fault = faults_.find(key);
    if (fault != faults_.end()) {
      status = fault->second;
    } else if (const auto turn = turns_.Add(std::move(whose), bytes); turn.ok()) {
      waiting_.emplace(*turn, Task{.turn = *turn,
                                   .key = std::move(key),
                                   .question = std::move(question),
                                   .then = std::move(then)});
      return;
    } else {
      status = turn.status();
    }
  }
  std::move(then)(std::move(status));
}

size_t TemplatePool::processes() const {
  absl::MutexLock lock(mu_);
  return processes_.size();
}

void TemplatePool::Run() {
  const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopped_ || turns_.MayStart(Now());
  };
  while (true) {
    Task task;
    {
      absl::MutexLock lock(mu_);
      mu_.Await(absl::Condition(&wanted));
      if (stopped_) return;
      // Time has passed since it was looked whether one may start.
      const auto turn = turns_.Start(Now());
      if (!turn.has_value()) continue;
      task = std::move(waiting_.extract(*turn).mapped());
    }
    const absl::Duration began = Now();
    std::optional<absl::Duration> used;
    auto prompt = Ask(task, &used);
    task.question = {};
    {
      absl::MutexLock lock(mu_);
      turns_.End(task.turn, used.value_or(Now() - began), Now());
      if (stopped_) return;
    }
    std::move(task.then)(std::move(prompt));
  }
}

absl::StatusOr<std::unique_ptr<TemplatePool::Process>> TemplatePool::ProcessFor(bool* was_idle) {
  {
    absl::MutexLock lock(mu_);
    if (!idle_.empty()) {
      auto process = std::move(idle_.back());
      idle_.pop_back();
      *was_idle = true;
      return process;
    }
  }
  auto process = Process::Start(options_);
  if (!process.ok()) return NoProcess(process.status().message());
  {
    absl::MutexLock lock(mu_);
    processes_.push_back(process->get());
    if (stopped_) (*process)->Cut();
  }
  // Its first frame says that it is there: what happens before is no template's doing.
  const auto hello = ReadTemplateFrame((*process)->socket(), 0, SteadyTime::Now() + kStartTime);
  if (hello.ok()) return process;
  Forget(**process);
  return NoProcess(absl::StrCat(hello.status().message(), "; it ", (*process)->End().Words()));
}

void TemplatePool::Forget(const Process& process) {
  absl::MutexLock lock(mu_);
  std::erase(processes_, &process);
}

absl::StatusOr<ChatTemplate::Prompt> TemplatePool::Ask(const Task& task,
                                                       std::optional<absl::Duration>* used) {
  bool was_idle = false;
  auto process = ProcessFor(&was_idle);
  if (!process.ok()) return process.status();
  const int socket = (*process)->socket();
  const SteadyTime deadline =
      SteadyTime::Now() + kWallTimes * absl::Milliseconds(options_.limits.time_ms);
  bool was_read = false;
  absl::Status status = WriteTemplateFrame(socket, EncodeTemplateRequest(task.question), deadline);
  while (status.ok()) {
    auto bytes = ReadTemplateFrame(socket, kTemplateResultBytesMax, deadline);
    auto answer = bytes.ok() ? DecodeTemplateResult(*bytes) : bytes.status();
    if (!answer.ok()) {
      status = answer.status();
    } else if (answer->is_read) {
      was_read = true;
    } else {
      const auto most = static_cast<uint64_t>(kWallTimes * options_.limits.time_ms) * 1000;
      *used = absl::Microseconds(static_cast<int64_t>(std::min(answer->used_us, most)));
      if (answer->grown_bytes < options_.limits.memory_bytes / kKeptPart) {
        absl::MutexLock lock(mu_);
        idle_.push_back(*std::move(process));
      } else {
        Forget(**process);
      }
      return std::move(answer->prompt);
    }
  }
  Forget(**process);
  // Whose doing that is nobody knows.
  if (absl::IsDeadlineExceeded(status)) return NoProcess("the one it had was too slow; try again");
  // One that has died since it answered, say when memory was short, says nothing of this template.
  if (was_idle && !was_read) return Ask(task, used);
  const ChildExit exit = (*process)->End();
  // Its own limit ends it in another way: it was the kernel's choice when memory was short.
  if (exit.signal == SIGKILL) return NoProcess("the one it had was killed; try again");
  return Blame(task, was_read, DeedOf(exit, options_.limits));
}

absl::Status TemplatePool::Blame(const Task& task, bool was_read, const std::string& deed) {
  const absl::Status status =
      absl::InvalidArgumentError(absl::StrCat("the model's chat template ", deed));
  absl::MutexLock lock(mu_);
  if (stopped_) return status;
  LOG_EVERY_N_SEC(WARNING, 10) << status.message();
  // That it does so before it has seen a message is its own doing, whoever asks.
  if (was_read) return status;
  if (faults_.size() >= kTemplateFaultsMax) faults_.clear();
  faults_[task.key] = status;
  return status;
}

}  // namespace strata
