// How what clients speak (node/api/openai/openai_api.h, the gRPC service) reaches the cluster from
// this node: through the coordinator where it is here, else over gRPC to the node that has it.
//
// Thread-safe. A thread of its own asks for the list of models, so that who needs it never waits.
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

// Who may wait for one list of models.
inline constexpr size_t kModelsWaitingMax = 2048;
// Texts that may wait for a node to coordinate.
inline constexpr size_t kRequestsWaitingMax = 1024;
// Before the same node is asked for the rest of a text again.
inline constexpr absl::Duration kGatewayResumePause = absl::Milliseconds(500);
// A call that ends within it may never have reached its node.
inline constexpr absl::Duration kGatewayConnectTime = absl::Seconds(2);

// Where texts come from.
class GenerationSource {
 public:
  struct GenerateOptions {
    // To the node that coordinates. False: who asks does so; where another one coordinates, the
    // text ends with kUnavailable and AsLeaderChanged().
    bool pass_on = true;
  };
  virtual ~GenerationSource() = default;
  // Starts a text; never blocks. What becomes of it goes to `sink`, which is kept until its
  // OnEnd().
  virtual std::shared_ptr<GenerationHandle> Generate(const wire::GenerateRequest& request,
                                                     std::shared_ptr<GenerationSink> sink,
                                                     GenerateOptions options) = 0;
};

// What is asked while no node coordinates is answered so: kUnavailable, with when to try again.
// `why`: a sentence without a dot; empty: it is not known.
absl::Status NoCoordinator(const std::string& why = "");

class Gateway final : public GenerationSource {
 public:
  struct Options {
    // How long who asks for the models waits while no node coordinates.
    absl::Duration leadership_time = absl::Seconds(5);
    // How long a text waits that has not begun; on a network that loses packets nodes take long to
    // agree on who coordinates.
    absl::Duration begin_time = absl::Seconds(15);
    // How long a text that had begun waits for another node to go on with it: one that coordinates,
    // and has loaded the model.
    absl::Duration resume_time = absl::Seconds(60);
  };
  // All outlive it.
  Gateway(EventLoop* loop, ClusterRuntime* cluster, Coordinator* coordinator, Options options);
  // After the loop has run. Blocks for an answer under way, a few seconds at most, and for texts of
  // other nodes, which have been cancelled.
  ~Gateway() override;

  // Whoever waits gets kUnavailable, and who comes from now on. Any thread; any number of times.
  void Stop();

  // Ends with the errors of Coordinator::Generate(); kUnavailable: no node coordinates
  // (RetryAfterMs), also after a while in which one might have taken over. A text goes on where the
  // node that coordinated has gone and another one takes over.
  std::shared_ptr<GenerationHandle> Generate(const wire::GenerateRequest& request,
                                             std::shared_ptr<GenerationSink> sink,
                                             GenerateOptions options) override;

  using ModelList = std::vector<wire::ModelStatus>;
  using Models = std::shared_ptr<const ModelList>;  // shared by all who asked
  using OnModels = absl::AnyInvocable<void(const absl::StatusOr<Models>&) &&>;
  // The cluster's models, as of at most `age_max` ago. Never blocks; `done` is called on this
  // thread or the gateway's. kUnavailable: no coordinator answers; kResourceExhausted: too many
  // wait.
  void ListModels(absl::Duration age_max, OnModels done);

  std::unique_ptr<wire::Coordinator::Stub> StubAt(const std::string& address);

 private:
  class Reader;
  class Local;
  class Text;
  struct PendingRequest {
    std::shared_ptr<Text> text;  // shared with who asked
    wire::GenerateRequest request;
    std::shared_ptr<ResumableGeneration> sink;  // shared with the text's source
    GenerateOptions options;
    SteadyTime until;  // so long it may wait, without the time that a node had it
    SteadyTime begun;  // at the source that it had last
    bool resumed = false;
    bool started = false;  // at the source that it had last
    absl::Status last;     // what the last one that was asked said, if it may say something else
    SteadyTime not_before = SteadyTime::InfinitePast();
  };

  void Begin(PendingRequest asked);  // loop
  // Its source has ended, but the text has not; `said`: why. Any thread.
  void GoOn(PendingRequest asked, RetryDecision how, const absl::Status& said);
  // Its source has gone in the middle.
  void Resume(PendingRequest asked);
  void Wait(PendingRequest asked);  // any thread
  void Pump();                      // loop
  void Tick();                      // loop
  absl::StatusOr<Models> Fetch();
  absl::StatusOr<Models> FetchOnce();
  void RefreshModelList();
  bool stopping();

  EventLoop* const loop_;
  ClusterRuntime* const cluster_;
  Coordinator* const coordinator_;
  const Options options_;
  const std::shared_ptr<CallbackGate> gate_ =
      std::make_shared<CallbackGate>();  // shared with Readers and Locals

  std::unique_ptr<EventLoop::Handle> tick_;  // loop; while texts wait

  absl::Mutex mu_;
  std::string channel_address_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mu_);  // shared with stubs
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Models models_ ABSL_GUARDED_BY(mu_);
  SteadyTime models_at_ ABSL_GUARDED_BY(mu_) = SteadyTime::InfinitePast();
  std::vector<OnModels> waiting_ ABSL_GUARDED_BY(mu_);
  std::vector<PendingRequest> asked_ ABSL_GUARDED_BY(mu_);  // until the loop's next turn
  std::vector<PendingRequest> requests_waiting_
      ABSL_GUARDED_BY(mu_);  // at most kRequestsWaitingMax

  std::thread lister_;
};

}  // namespace strata
