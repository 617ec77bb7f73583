// Renders prompts by models' chat templates, in processes of their own (template_process.h), so
// that no template can hang this process, fill its memory or crash it. The processes are started on
// demand and stay, each with the templates that it has parsed. Thread-safe.
//
// TemplateTurns (template_turns.h) decides which prompt is next.
//
//   ApiBackend ─▶ TemplatePool ─▶ its turn ─▶ a thread ─ socket ─▶ strata template ─▶ ChatTemplate
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "node/chat/chat_template.h"
#include "node/chat/template_frames.h"
#include "node/chat/template_process.h"
#include "node/chat/template_turns.h"
#include "transport/base/clock.h"

namespace strata {

inline constexpr size_t kTemplateProcesses = 3;
inline constexpr size_t kTemplateFaultsMax = 64;  // broken templates that are remembered

class TemplatePool {
 public:
  struct Options {
    std::string program;  // of the processes; empty: this process' own
    size_t processes_max = kTemplateProcesses;
    TemplateLimits limits;
    size_t waiting_max = kTemplatesWaitingMax;
    Clock* clock = Clock::Real();  // of turns; outlives the pool
  };
  explicit TemplatePool(Options options);
  // Kills the processes. Waits for a running callback; the others are dropped.
  ~TemplatePool();

  // Calls `then` once, on a thread of the pool or this one. kInvalidArgument: the template cannot
  // be parsed or refuses these messages, with its message; or it exceeded a limit, and which. A
  // template that does so while it is parsed is not parsed again. kUnavailable, kResourceExhausted:
  // too many requests wait, as of TemplateTurns. kUnavailable: no process can be started.
  using OnPrompt = absl::AnyInvocable<void(absl::StatusOr<ChatTemplate::Prompt>) &&>;
  void Render(TemplateTurns::Owner owner, TemplateRequest request, OnPrompt then);

  size_t processes() const;  // running ones

 private:
  struct Task {
    TemplateTurns::Id turn = 0;
    std::string key;
    TemplateRequest request;
    OnPrompt then;
  };
  class Process;

  void Run();
  absl::Duration Now() const { return absl::Microseconds(options_.clock->NowUs()); }
  // Sets `used` to the processor time, where it is known.
  absl::StatusOr<ChatTemplate::Prompt> RunTask(const Task& task,
                                               std::optional<absl::Duration>* used);
  // Sets `was_idle` where the process has served a request before.
  absl::StatusOr<std::unique_ptr<Process>> ProcessFor(bool* was_idle);
  void Forget(const Process& process);
  // The error of a template that exceeded a limit; remembers one that does so while it is parsed.
  absl::Status Blame(const Task& task, bool was_read, const std::string& fault);

  const Options options_;

  mutable absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  TemplateTurns turns_ ABSL_GUARDED_BY(mu_);
  std::map<TemplateTurns::Id, Task> waiting_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, absl::Status> faults_ ABSL_GUARDED_BY(mu_);  // permanent, by template
  std::vector<std::unique_ptr<Process>> idle_ ABSL_GUARDED_BY(mu_);  // last used last
  std::vector<Process*> processes_ ABSL_GUARDED_BY(mu_);             // all

  std::vector<std::thread> threads_;
};

}  // namespace strata
