// Decides what becomes of clients' requests at their node: where each runs, when it waits, is tried
// again or resumed elsewhere, and with which status it ends. Does no I/O and has no thread; the
// time comes from Options::now. A RequestRunner does what is decided: node/gateway/gateway.h over
// gRPC, and the simulation in tests/sim on its network.
//
//   Generate() ─▶ Dispatch() ─▶ RequestRunner::RunHere(), RunElsewhere() ─▶ RequestAttempt
//                    ▲                                                         │ OnEnd()
//                    └────── Tick(), while it waits ◀─── DecideRetry() ◀───────┘
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/generation/generation_call.h"
#include "coordinator/request/fair_queue.h"
#include "node/gateway/resumable_generation.h"
#include "proto/coordinator.pb.h"
#include "transport/base/callback_gate.h"
#include "transport/base/steady_time.h"

namespace strata {

// Requests that may wait for a node to coordinate.
inline constexpr size_t kRequestsWaitingMax = 1024;
// How often those that wait are tried again.
inline constexpr absl::Duration kRequestTick = absl::Milliseconds(100);
// Back-off before the same node is asked for the rest of a request again.
inline constexpr absl::Duration kRequestResumePause = absl::Milliseconds(500);
// A call that ends within this time may never have reached its node.
inline constexpr absl::Duration kRequestConnectTime = absl::Seconds(2);

// The status of calls made while no node coordinates: kUnavailable, with when to try again.
// `why`: a sentence without a dot; empty: the reason is not known.
absl::Status NoCoordinator(const std::string& why = "");

class RequestRouter;

// A request at one source. The source reports to it, one call at a time: OnStarted(), OnToken()…,
// and at last OnEnd() or OnBroken(). Whatever comes after that is dropped, and so is a token that
// the client has: each position is forwarded once. Not thread-safe.
class RequestAttempt final : public GenerationListener {
 public:
  ~RequestAttempt() override;

  // REQUIRES: it has not ended.
  const wire::GenerateRequest& request() const;
  // Passes the client's Cancel() and Finish() on to `source` from now on, and one that was called
  // already. REQUIRES: it has not ended; called before the source runs.
  void SetSource(const std::shared_ptr<GenerationHandle>& source);

  void OnStarted(const std::vector<int32_t>& prompt) override;
  void OnProgress(const PromptProgress& progress) override;
  void OnToken(const wire::SampledToken& token) override;
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override;
  // The connection to the source broke, or was never made.
  void OnBroken(absl::Status status);

 private:
  friend class RequestRouter;
  struct Request;
  class Handle;

  RequestAttempt(RequestRouter* router, std::unique_ptr<Request> request);
  void End(absl::Status status, bool from_source, FinishReason reason,
           const GenerationUsage& usage);

  RequestRouter* const router_;               // only inside the gate
  const std::shared_ptr<CallbackGate> gate_;  // shared with the router
  std::unique_ptr<Request> request_;          // null: it has ended
};

// Does what the router decides. Called without a lock.
class RequestRunner {
 public:
  // The place where requests of a model run now, as this node sees it.
  struct Leader {
    enum class Place { kNone, kHere, kElsewhere };
    Place place = Place::kNone;
    std::string address;  // kElsewhere: opaque to the router; empty: it cannot be reached
    // kHere: its role is new, and it may load models of the coordinator before soon.
    bool may_reload = false;
    // kHere: OK, or why it would refuse the request now. Else why no node can be reached; OK: the
    // reason is not known.
    absl::Status status;
  };
  virtual ~RequestRunner() = default;

  virtual Leader FindLeader(const std::string& model) = 0;
  // `call` gets what becomes of the request.
  virtual void RunHere(const wire::GenerateRequest& request,
                       std::shared_ptr<GenerationCall> call) = 0;
  // The source at `address` reports to `attempt`, with its connection's end as OnBroken().
  virtual void RunElsewhere(const std::string& address,
                            std::shared_ptr<RequestAttempt> attempt) = 0;
  // Dispatch() is called soon; Tick() after kRequestTick. Any thread.
  virtual void DispatchSoon() = 0;
  virtual void TickSoon() = 0;
};

// Thread-safe; Dispatch() and Tick() on one thread, which FindLeader() and the Run…() run on.
class RequestRouter {
 public:
  struct Options {
    // How long a request waits that has not begun; on a network that loses packets nodes take long
    // to agree on a coordinator.
    absl::Duration begin_time = absl::Seconds(15);
    // How long a request that had begun waits for another node to resume it: one that coordinates
    // and has loaded the model. Each source that starts it renews that time.
    absl::Duration resume_time = absl::Seconds(60);
    std::function<SteadyTime()> now = SteadyTime::Now;
  };
  // `runner` outlives it.
  RequestRouter(RequestRunner* runner, Options options);
  // Blocks for calls in progress. Attempts end with their source's status from then on.
  ~RequestRouter();

  // Never blocks. The request's output and its end go to `client`. Without `pass_on` the caller is
  // a node that forwards the request and resumes it: where this node does not coordinate, or no
  // longer does, it ends with AsLeaderChanged(). Ends with the errors of its source; kUnavailable
  // (RetryAfterMs): no node coordinated within the time to wait; kResourceExhausted: too many wait,
  // maybe of this client (IsClientLimit); kDataLoss: the source left out a token.
  std::shared_ptr<GenerationHandle> Generate(const wire::GenerateRequest& request,
                                             std::shared_ptr<GenerationListener> client,
                                             bool pass_on);
  void Dispatch();  // those that have come
  void Tick();      // those that wait
  // Ends all waiting and future requests with kUnavailable. Any number of times.
  void Stop();

  size_t waiting() const;

 private:
  friend class RequestAttempt;
  using Request = RequestAttempt::Request;
  using RequestPtr = std::unique_ptr<Request>;

  void Begin(RequestPtr request);
  // Its source has ended with `status`, but the request has not.
  void Retry(RequestPtr request, RetryDecision decision, const absl::Status& status);
  void Wait(RequestPtr request);
  std::vector<RequestPtr> TakeWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  RequestRunner* const runner_;
  const Options options_;
  const std::shared_ptr<CallbackGate> gate_ =
      std::make_shared<CallbackGate>();  // shared with attempts

  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<RequestPtr> incoming_ ABSL_GUARDED_BY(mu_);  // until Dispatch()
  FairQueue queue_ ABSL_GUARDED_BY(mu_){kRequestsWaitingMax};
  std::map<uint64_t, RequestPtr> waiting_ ABSL_GUARDED_BY(mu_);  // in queue_, by number
};

}  // namespace strata
