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
#include "absl/strings/str_replace.h"
#include "node/workers/child_process.h"
#include "transport/base/own_program.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

// From a process' start to its first frame; machines that load a model meanwhile are slow.
constexpr absl::Duration kStartTime = absl::Seconds(20);
// Limit of wall time as a multiple of the limit of processor time, for busy machines.
constexpr int kWallTimes = 4;
// A process that has grown by more than 1/kGrownPart of the memory limit is replaced: Python gives
// little of its memory back.
constexpr uint64_t kGrownPart = 4;

// Fewer system calls for a long prompt.
constexpr int kSendBufferBytes = 1 << 20;

std::string TooSlow(const TemplateLimits& limits) {
  return absl::StrCat("takes more than ", absl::FormatDuration(absl::Milliseconds(limits.time_ms)));
}

absl::Status NoProcess(absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("no process to run chat templates: ", why));
}

// Describes the fault of a template that ended its process.
std::string FaultOf(const ChildExit& exit, const TemplateLimits& limits) {
  if (exit.code == kTemplateMemoryExit) {
    return absl::StrCat("needs more than ", limits.memory_bytes >> 20, " MiB of memory");
  }
  if (exit.code == kTemplateTimeExit) return TooSlow(limits);
  return absl::StrCat("nests or recurses too deeply, or is broken in another way: its process ",
                      exit.Words());
}

// Bytes that the client sent.
size_t BytesOf(const TemplateRequest& request) {
  size_t bytes = 0;
  for (const ChatMessage& message : request.messages) {
    bytes += sizeof(message) + message.content.size() + message.reasoning.size();
    for (const ChatToolCall& call : message.calls) bytes += sizeof(call) + call.arguments.size();
  }
  for (const ChatTool& tool : request.tools.list) bytes += sizeof(tool) + tool.json.size();
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
  // Any thread: fails reads and writes of the socket with kUnavailable.
  void Cut() { shutdown(socket_, SHUT_RDWR); }
  // How the process ended; kills it if it has not ended soon.
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
  std::map<TemplateTurns::Id, Task> dropped;
  {
    absl::MutexLock lock(mu_);
    stopped_ = true;
    dropped.swap(waiting_);
    for (Process* process : processes_) process->Cut();
  }
  for (std::thread& thread : threads_) thread.join();
}

void TemplatePool::Render(TemplateTurns::Owner owner, TemplateRequest request, OnPrompt then) {
  std::string key = request.source.Key();
  const size_t bytes = BytesOf(request);
  absl::Status status;
  {
    absl::MutexLock lock(mu_);
    const auto fault = faults_.find(key);
    if (fault != faults_.end()) {
      status = fault->second;
    } else if (const auto turn = turns_.Add(std::move(owner), bytes); turn.ok()) {
      waiting_.emplace(*turn, Task{.turn = *turn,
                                   .key = std::move(key),
                                   .request = std::move(request),
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
      // Time has passed since MayStart().
      const auto turn = turns_.Start(Now());
      if (!turn.has_value()) continue;
      task = std::move(waiting_.extract(*turn).mapped());
    }
    const absl::Duration began = Now();
    std::optional<absl::Duration> used;
    auto prompt = RunTask(task, &used);
    task.request = {};
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
  // The first frame announces the process: failures before it are not a template's fault.
  const auto hello = ReadTemplateFrame((*process)->socket(), 0, SteadyTime::Now() + kStartTime);
  if (hello.ok()) return process;
  Forget(**process);
  const ChildExit& exit = (*process)->End();
  return NoProcess(absl::StrCat(hello.status().message(), "; it ", exit.Words(), " ",
                                absl::StrReplaceAll(exit.last_words, {{"\n", " "}})));
}

void TemplatePool::Forget(const Process& process) {
  absl::MutexLock lock(mu_);
  std::erase(processes_, &process);
}

absl::StatusOr<ChatTemplate::Prompt> TemplatePool::RunTask(const Task& task,
                                                           std::optional<absl::Duration>* used) {
  bool was_idle = false;
  auto process = ProcessFor(&was_idle);
  if (!process.ok()) return process.status();
  const int socket = (*process)->socket();
  const SteadyTime deadline =
      SteadyTime::Now() + kWallTimes * absl::Milliseconds(options_.limits.time_ms);
  bool was_read = false;
  absl::Status status = WriteTemplateFrame(socket, EncodeTemplateRequest(task.request), deadline);
  while (status.ok()) {
    auto bytes = ReadTemplateFrame(socket, kTemplateResultBytesMax, deadline);
    auto result = bytes.ok() ? DecodeTemplateResult(*bytes) : bytes.status();
    if (!result.ok()) {
      status = result.status();
    } else if (result->is_read) {
      was_read = true;
    } else {
      const auto most = static_cast<uint64_t>(kWallTimes * options_.limits.time_ms) * 1000;
      *used = absl::Microseconds(static_cast<int64_t>(std::min(result->used_us, most)));
      if (result->grown_bytes < options_.limits.memory_bytes / kGrownPart) {
        absl::MutexLock lock(mu_);
        idle_.push_back(*std::move(process));
      } else {
        Forget(**process);
      }
      return std::move(result->prompt);
    }
  }
  Forget(**process);
  // The machine may be at fault as well as the template.
  if (absl::IsDeadlineExceeded(status)) return NoProcess("the process was too slow; try again");
  // An idle process may have died earlier, say when memory was short: not this template's fault.
  if (was_idle && !was_read) return RunTask(task, used);
  const ChildExit exit = (*process)->End();
  // A limit ends the process by another exit status: the kernel killed it when memory was short.
  if (exit.signal == SIGKILL) return NoProcess("the process was killed; try again");
  return Blame(task, was_read, FaultOf(exit, options_.limits));
}

absl::Status TemplatePool::Blame(const Task& task, bool was_read, const std::string& fault) {
  const absl::Status status =
      absl::InvalidArgumentError(absl::StrCat("the model's chat template ", fault));
  absl::MutexLock lock(mu_);
  if (stopped_) return status;
  LOG_EVERY_N_SEC(WARNING, 10) << status.message();
  // A fault before the template has seen a message does not depend on the request.
  if (was_read) return status;
  if (faults_.size() >= kTemplateFaultsMax) faults_.clear();
  faults_[task.key] = status;
  return status;
}

}  // namespace strata
