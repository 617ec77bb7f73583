// A worker: the child process that holds the stages of one device, because libllama aborts on inner
// errors and may take all memory there is. The node starts it, asks it every half second whether it
// lives, or more seldom while it has nothing to do, kills it when it hangs, and tells what became
// of it.
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

// A step may take so many times longer while a stage is loaded beside.
inline constexpr int64_t kStepTimesLoading = 5;

struct WorkerTimeouts {
  int64_t start_ms = 30'000;  // from the start of the process to its address
  int64_t ping_every_ms = 500;
  int64_t idle_pings = 6;  // at which it had nothing to do, after which it is asked less often:
  int64_t idle_ping_every_ms = 10'000;
  int64_t silent_ms = 3'000;  // without an answer: frozen
  int64_t step_ms = 120'000;  // on one step: hangs. While stages load, kStepTimesLoading of it
  int64_t stop_ms = 2'000;    // between asking it to stop and killing it
};

// How a worker ended.
struct WorkerDeath {
  absl::StatusCode code = absl::StatusCode::kOk;  // OK: it was asked to stop
  std::string what;                               // "aborted"
  std::string how;                                // "signal 6, Aborted"
  std::string last_words;                         // of its stderr, on one line
  // Where it was memory, the machine's own, whatever the worker's device.
  bool of_machine_memory = false;

  // "the worker aborted while loading (signal 6, Aborted): GGML_ASSERT(…) failed".
  absl::Status ToStatus(absl::string_view during) const;
};

// What `exit` says of a worker that nobody asked to stop.
WorkerDeath DeathFromExit(const ChildExit& exit);

class WorkerProcess {
 public:
  struct Options {
    std::string program;            // see OwnProgram()
    std::vector<std::string> args;  // argv[0] included
    std::string label;              // for what is printed about it
    bool echo_stderr = false;       // print what it prints, and not its warnings alone
    WorkerTimeouts timeouts;
  };

  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnWorkerReady() = 0;
    // Exactly once, last, unless the WorkerProcess is destroyed before. May destroy the
    // WorkerProcess.
    virtual void OnWorkerDied(const WorkerDeath& death) = 0;
    // told() is new.
    virtual void OnWorkerTold() = 0;
  };

  // `loop` and `observer` outlive the worker. Errors: the system's, when it cannot start a process.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(EventLoop* loop, Options options,
                                                              Observer* observer);

  // Blocks only while the process has not ended: after the loop, that is asking, waiting stop_ms
  // and killing.
  ~WorkerProcess();

  bool ready() const { return stub_ != nullptr; }
  bool stopping() const { return stopping_; }
  // Whether it computed lately.
  bool busy() const { return busy_ || loading_; }
  pid_t pid() const { return child_->pid(); }
  // Its last answer, and when that came by this process's steady clock; 0: it has not answered yet.
  const wire::PingResponse& told() const { return told_; }
  int64_t told_ms() const { return told_ms_; }

  // Somebody wants to know what it says of itself: soon told() is new, where it has become old.
  void Refresh();

  // It may have work soon: asked at once, and as often as ever until it has had none for a while.
  void Watch();

  // Precondition: ready().
  wire::Worker::Stub* stub() const { return stub_.get(); }

  // While stages load, a step may take longer.
  void set_loading(bool loading) { loading_ = loading; }

  // What it has printed so far is of no use to explain its death: words of a load that is over.
  void ForgetWords() { child_->ForgetWords(); }

  // Asks the worker to stop, kills it when it does not; OnWorkerDied follows.
  void Stop();

  // Tells a call that the worker refused from one that it did not survive: calls `fn` with true
  // once the worker has answered a question asked after this, with false after OnWorkerDied.
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
  std::shared_ptr<PingCall> ping_;  // under way; shared with its callback
  std::unique_ptr<EventLoop::Handle> tick_, deadline_;
  int64_t silent_ticks_ = 0;
  int64_t idle_answers_ = 0;  // in a row
  wire::PingResponse told_;
  int64_t told_ms_ = 0;
  bool busy_ = false;
  bool loading_ = false;
  bool stopping_ = false;
  Checks checks_waiting_, checks_asked_;  // bounded by the calls under way
  std::unique_ptr<WorkerDeath> verdict_;  // why it was killed by us

  CallbackGate gate_;
  std::unique_ptr<ChildProcess> child_;
};

}  // namespace strata
