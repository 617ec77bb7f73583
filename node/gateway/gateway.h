// Carries clients' calls (node/api/openai/openai_api.h, the gRPC service) from this node to the
// cluster: to the coordinator where it is on this node, else over gRPC to the node that has it.
//
// Thread-safe. A thread of its own fetches the list of models, so that ListModels() never blocks.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/generation/generation_call.h"
#include "coordinator/models/coordinator.h"
#include "node/gateway/resumable_generation.h"
#include "proto/coordinator.grpc.pb.h"
#include "transport/base/callback_gate.h"
#include "transport/base/event_loop.h"
#include "transport/base/steady_time.h"

namespace strata {

// Callers that may wait for one list of models.
inline constexpr size_t kModelsWaitingMax = 2048;
// Requests that may wait for a node to coordinate.
inline constexpr size_t kRequestsWaitingMax = 1024;
// Back-off before the same node is asked for the rest of a request again.
inline constexpr absl::Duration kGatewayResumePause = absl::Milliseconds(500);
// A call that ends within this time may never have reached its node.
inline constexpr absl::Duration kGatewayConnectTime = absl::Seconds(2);

// Runs requests.
class GenerationSource {
 public:
  struct GenerateOptions {
    // Forward the request to the node that coordinates. False: the caller does; where another node
    // coordinates, the request ends with kUnavailable and AsLeaderChanged().
    bool pass_on = true;
  };
  virtual ~GenerationSource() = default;
  // Starts a request; never blocks. Its output and its end go to `sink`, which is kept until its
  // OnEnd().
  virtual std::shared_ptr<GenerationHandle> Generate(const wire::GenerateRequest& request,
                                                     std::shared_ptr<GenerationListener> sink,
                                                     GenerateOptions options) = 0;
};

// The status of calls made while no node coordinates: kUnavailable, with when to try again.
// `why`: a sentence without a dot; empty: the reason is not known.
absl::Status NoCoordinator(const std::string& why = "");

class Gateway final : public GenerationSource {
 public:
  struct Options {
    // How long a call for the models waits while no node coordinates.
    absl::Duration leadership_time = absl::Seconds(5);
    // How long a request waits that has not begun; on a network that loses packets nodes take long
    // to agree on a coordinator.
    absl::Duration begin_time = absl::Seconds(15);
    // How long a request that had begun waits for another node to resume it: one that coordinates
    // and has loaded the model.
    absl::Duration resume_time = absl::Seconds(60);
  };
  // All outlive it.
  Gateway(EventLoop* loop, ClusterRuntime* cluster, Coordinator* coordinator, Options options);
  // REQUIRES: the loop has stopped. Blocks for a response in flight, a few seconds at most, and for
  // requests that run on other nodes, which have been cancelled.
  ~Gateway() override;

  // Fails all waiting and future calls with kUnavailable. Any thread; any number of times.
  void Stop();

  // Ends with the errors of Coordinator::Generate(); kUnavailable: no node coordinates
  // (RetryAfterMs), nor took over within the time to wait. A request is resumed when the node that
  // coordinated has gone and another one takes over.
  std::shared_ptr<GenerationHandle> Generate(const wire::GenerateRequest& request,
                                             std::shared_ptr<GenerationListener> sink,
                                             GenerateOptions options) override;

  using ModelList = std::vector<wire::ModelStatus>;
  using Models = std::shared_ptr<const ModelList>;  // shared by all callers
  using OnModels = absl::AnyInvocable<void(const absl::StatusOr<Models>&) &&>;
  // The cluster's models, as of at most `age_max` ago. Never blocks; `done` is called on this
  // thread or the gateway's. kUnavailable: no coordinator answers; kResourceExhausted: too many
  // calls wait.
  void ListModels(absl::Duration age_max, OnModels done);

  std::unique_ptr<wire::Coordinator::Stub> StubAt(const std::string& address);

 private:
  class Reader;
  class Local;
  class Text;
  struct PendingRequest {
    std::shared_ptr<Text> generation;  // shared with the caller
    wire::GenerateRequest request;
    std::shared_ptr<ResumableGeneration> sink;  // shared with the request's source
    GenerateOptions options;
    SteadyTime until;  // deadline of the wait, extended by the time that a node had the request
    SteadyTime begun;  // at the last source
    bool resumed = false;
    bool started = false;  // at the last source
    absl::Status last;     // status of the last source, where a retry may end otherwise
    SteadyTime not_before = SteadyTime::InfinitePast();
  };

  void Begin(PendingRequest pending);  // loop
  // The source has ended with `status`, but the request has not. Any thread.
  void Retry(PendingRequest pending, RetryDecision decision, const absl::Status& status);
  // The source has gone in the middle.
  void Resume(PendingRequest pending);
  void Wait(PendingRequest pending);  // any thread
  void Pump();                        // loop
  void Tick();                        // loop
  absl::StatusOr<Models> FetchModels();
  absl::StatusOr<Models> FetchModelsOnce();
  void RefreshModelList();
  bool stopping();

  EventLoop* const loop_;
  ClusterRuntime* const cluster_;
  Coordinator* const coordinator_;
  const Options options_;
  const std::shared_ptr<CallbackGate> gate_ =
      std::make_shared<CallbackGate>();  // shared with Readers and Locals

  std::unique_ptr<EventLoop::Handle> tick_;  // loop; while requests wait

  absl::Mutex mu_;
  std::string channel_address_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mu_);  // shared with stubs
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Models models_ ABSL_GUARDED_BY(mu_);
  SteadyTime models_at_ ABSL_GUARDED_BY(mu_) = SteadyTime::InfinitePast();
  std::vector<OnModels> models_waiting_ ABSL_GUARDED_BY(mu_);
  std::vector<PendingRequest> incoming_ ABSL_GUARDED_BY(mu_);  // until the loop's next turn
  std::vector<PendingRequest> requests_waiting_
      ABSL_GUARDED_BY(mu_);  // at most kRequestsWaitingMax

  std::thread lister_;
};

}  // namespace strata
