// Makes prompts by models' chat templates, in processes of their own (template_process.h), so that
// no template can hang this one, fill its memory or end it. The processes stay, each with the
// templates that it has read; they are started when they are wanted. Thread-safe.
//
//   OpenAiApi ─▶ TemplatePool ─▶ queue ─▶ a thread ─ socket ─▶ strata template ─▶ ChatTemplate
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "node/chat_template.h"
#include "node/template_frames.h"
#include "node/template_process.h"

namespace strata {

inline constexpr size_t kTemplatesWaitingMax = 256;  // requests
inline constexpr size_t kTemplateFaultsMax = 64;     // templates that are remembered

class TemplatePool {
 public:
  struct Options {
    std::string program;  // of the processes; empty: this one
    size_t processes_max = 2;
    TemplateLimits limits;
    size_t waiting_max = kTemplatesWaitingMax;
    // So long a template that passed a limit at a prompt has one process at a time at most.
    absl::Duration watched = absl::Minutes(1);
  };
  explicit TemplatePool(Options options);
  // Kills the processes. Waits for a callback that runs; the others are dropped.
  ~TemplatePool();

  // Calls `then` once, on a thread of the pool or this one. kInvalidArgument: the template cannot
  // be read or refuses these messages, in its words; or it passed a limit, and which. One that does
  // so while it is read is not read again. kUnavailable: too many wait, or no process can be
  // started.
  using OnPrompt = absl::AnyInvocable<void(absl::StatusOr<ChatTemplate::Prompt>) &&>;
  void Render(TemplateQuestion question, OnPrompt then);

  size_t processes() const;  // that run

 private:
  struct Task {
    std::string key;
    TemplateQuestion question;
    OnPrompt then;
  };
  struct Fault {
    absl::Status for_good;  // OK: it is but watched
    absl::Time until;
  };
  class Process;

  void Run();
  bool MayStart(const Task& task, absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AnyMayStart() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  Task Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<ChatTemplate::Prompt> Ask(const Task& task);
  // `was_idle`: it has answered before.
  absl::StatusOr<std::unique_ptr<Process>> ProcessFor(bool* was_idle);
  void Forget(const Process& process);
  // What to tell of a template that passed a limit; remembers it.
  absl::Status Blame(const Task& task, bool was_read, const std::string& deed);

  const Options options_;

  mutable absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Task> waiting_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, size_t> running_ ABSL_GUARDED_BY(mu_);       // by template
  std::map<std::string, Fault> faults_ ABSL_GUARDED_BY(mu_);         // by template
  std::vector<std::unique_ptr<Process>> idle_ ABSL_GUARDED_BY(mu_);  // last used last
  std::vector<Process*> processes_ ABSL_GUARDED_BY(mu_);             // all

  std::vector<std::thread> threads_;
};

}  // namespace strata
