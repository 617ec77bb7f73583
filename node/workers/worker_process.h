// A worker: the child process that holds the stages of one device, because libllama aborts on inner
// errors and may take all memory there is. The node starts it, pings it every half second, or
// less often while it is idle, kills it when it hangs, and reports how it ended.
//
// Loop thread only. gRPC's and the child's threads post to the loop.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "node/workers/child_process.h"
#include "proto/node.grpc.pb.h"
#include "transport/base/callback_gate.h"
#include "transport/base/event_loop.h"

namespace strata {

// How many times longer a step may take while the same worker loads a stage.
inline constexpr int64_t kStepTimesLoading = 5;

struct WorkerTimeouts {
  int64_t start_ms = 30'000;  // from the start of the process to its address
  int64_t ping_every_ms = 500;
  int64_t idle_pings = 6;  // without work, in a row, after which it is pinged less often:
  int64_t idle_ping_every_ms = 10'000;
  int64_t silent_ms = 3'000;  // without an answer: frozen
  int64_t step_ms = 120'000;  // on one step: hung. While stages load: times kStepTimesLoading
  int64_t stop_ms = 2'000;    // between asking it to stop and killing it
};

// How a worker ended.
struct WorkerDeath {
  absl::StatusCode code = absl::StatusCode::kOk;  // OK: it was asked to stop
  std::string what;                               // "aborted"
  std::string how;                                // "signal 6, Aborted"
  std::string last_words;                         // of its stderr, on one line
  // If memory ran out, it was the machine's, whatever the worker's device.
  bool of_machine_memory = false;

  // "the worker aborted while loading (signal 6, Aborted): GGML_ASSERT(…) failed".
  absl::Status ToStatus(absl::string_view during) const;
};

// How a worker ended that was not asked to stop, by its `exit`.
WorkerDeath DeathFromExit(const ChildExit& exit);

class WorkerProcess {
 public:
  struct Options {
    std::string program;            // see OwnProgram()
    std::vector<std::string> args;  // argv[0] included
    std::string label;              // of its lines in the log
    bool echo_stderr = false;       // print all of its stderr, not only its warnings
    WorkerTimeouts timeouts;
  };

  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnWorkerReady() = 0;
    // Exactly once, last, unless the WorkerProcess is destroyed before. May destroy the
    // WorkerProcess.
    virtual void OnWorkerDied(const WorkerDeath& death) = 0;
    // report() is new.
    virtual void OnWorkerReport() = 0;
  };

  // `loop` and `observer` outlive the worker. Errors: the system's, when it cannot start a process.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(EventLoop* loop, Options options,
                                                              Observer* observer);

  // Blocks only if the process has not ended: asks it to stop, waits stop_ms, and kills it.
  ~WorkerProcess();

  bool ready() const { return stub_ != nullptr; }
  bool stopping() const { return stopping_; }
  // True if it computed lately, or loads.
  bool busy() const { return busy_ || loading_; }
  pid_t pid() const { return child_->pid(); }
  // Its last answer to a ping, and when it came by this process's steady clock; 0: none yet.
  const wire::PingResponse& report() const { return report_; }
  int64_t report_ms() const { return report_ms_; }

  // Pings it if report() has become old; a new one follows soon.
  void Refresh();

  // It may have work soon: pings it at once, and at the usual rate until it has been idle a while.
  void Watch();

  // REQUIRES: ready().
  wire::Worker::Stub* stub() const { return stub_.get(); }

  // While stages load, a step may take longer.
  void set_loading(bool loading) { loading_ = loading; }

  // Drops its last words so far: words of a load that is over do not explain a later death.
  void ForgetWords() { child_->ForgetWords(); }

  // Asks the worker to stop, kills it when it does not; OnWorkerDied follows.
  void Stop();

  // Distinguishes a call that the worker refused from one that it did not survive: calls `fn` with
  // true once the worker has answered a ping sent after this, with false after OnWorkerDied.
  void CheckAlive(absl::AnyInvocable<void(bool alive) &&> fn);

 private:
  struct PingCall;
  using Checks = std::vector<absl::AnyInvocable<void(bool) &&>>;

  WorkerProcess(EventLoop* loop, Options options, Observer* observer);

  // Posts `fn` to the loop; it is dropped when this has been destroyed by then. Any thread.
  void Post(std::function<void()> fn);

  void OnAddress(const std::string& address);
  void OnExit(const ChildExit& exit);
  void TickAfter(int64_t delay_ms);
  void Tick();
  void SendPing();
  void OnPing(const grpc::Status& status, const wire::PingResponse& response);
  void KillBecause(absl::string_view what, absl::string_view how);

  EventLoop* const loop_;
  const Options options_;
  Observer* const observer_;
  const std::shared_ptr<const char> alive_ = std::make_shared<const char>();  // see Post()

  std::unique_ptr<wire::Worker::Stub> stub_;
  std::shared_ptr<PingCall> ping_;  // in flight; shared with its callback
  std::unique_ptr<EventLoop::Handle> tick_, deadline_;
  int64_t silent_ticks_ = 0;
  int64_t idle_answers_ = 0;  // in a row
  wire::PingResponse report_;
  int64_t report_ms_ = 0;
  bool busy_ = false;
  bool loading_ = false;
  bool stopping_ = false;
  Checks checks_waiting_, checks_sent_;   // bounded by the calls in flight
  std::unique_ptr<WorkerDeath> verdict_;  // why this process killed it

  CallbackGate gate_;
  std::unique_ptr<ChildProcess> child_;
};

}  // namespace strata
