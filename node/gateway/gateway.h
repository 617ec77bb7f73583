// Carries clients' calls (node/api/api_backend.h, the gRPC service) from this node to the
// cluster: to the coordinator where it is on this node, else over gRPC to the node that has it.
// RequestRouter decides which, and what follows; the gateway carries that out.
//
// Thread-safe. Lists of models are fetched by threads of their own, so that asking for them never
// blocks.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/generation/generation_call.h"
#include "coordinator/models/coordinator.h"
#include "node/base/cached_fetch.h"
#include "node/gateway/load_queue.h"
#include "node/gateway/request_router.h"
#include "proto/coordinator.grpc.pb.h"
#include "transport/base/callback_gate.h"
#include "transport/base/event_loop.h"

namespace strata {

// Callers that may wait for one list of models.
inline constexpr size_t kModelsWaitingMax = 2048;

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

class Gateway final : public GenerationSource, private RequestRunner {
 public:
  struct Options {
    // How long a call for the models waits while no node coordinates.
    absl::Duration leadership_time = absl::Seconds(5);
    RequestRouter::Options requests;
  };
  // All outlive it.
  Gateway(EventLoop* loop, ClusterRuntime* cluster, Coordinator* coordinator, Options options);
  // `self_address`: host:port by which the node reaches itself. Once, before any other call.
  void Start(std::string self_address) { self_address_ = std::move(self_address); }
  // REQUIRES: the loop has stopped. Blocks for a response in flight, a few seconds at most, and for
  // requests that run on other nodes, which have been cancelled.
  ~Gateway() override;

  // Fails all waiting and future calls with kUnavailable. Any thread; any number of times.
  void Stop();

  // As RequestRouter::Generate(); ends with the errors of Coordinator::Generate(), too.
  std::shared_ptr<GenerationHandle> Generate(const wire::GenerateRequest& request,
                                             std::shared_ptr<GenerationListener> sink,
                                             GenerateOptions options) override;

  using ModelList = std::vector<wire::ModelStatus>;
  using Models = std::shared_ptr<const ModelList>;  // shared by all callers
  using OnModels = CachedFetch<Models>::Done;
  // The cluster's models, as of at most `age_max` ago. Never blocks; `done` is called on this
  // thread or the gateway's. kUnavailable: no coordinator answers; kResourceExhausted: too many
  // calls wait.
  void ListModels(absl::Duration age_max, OnModels done) { models_.Get(age_max, std::move(done)); }

  using KnownModels = std::shared_ptr<const wire::ListKnownModelsResponse>;  // the same
  using OnKnownModels = CachedFetch<KnownModels>::Done;
  // The models whose files the cluster's nodes have, loaded or not; otherwise as ListModels().
  void ListKnownModels(absl::Duration age_max, OnKnownModels done) {
    known_models_.Get(age_max, std::move(done));
  }

  // Words to tokens and back, by the node of the model's first stage; the requests' stage and epoch
  // are set here. Never block; `done` is called on any thread. kUnavailable: the stage is elsewhere
  // by now, or its node does not answer; kInvalidArgument: as of shard/engine/tokenize.h.
  template <typename Response>
  using OnResponse = std::function<void(const absl::StatusOr<Response>&)>;
  void Tokenize(const wire::ModelStatus& model, wire::TokenizeRequest request,
                OnResponse<wire::TokenizeResponse> done);
  void Detokenize(const wire::ModelStatus& model, wire::DetokenizeRequest request,
                  OnResponse<wire::DetokenizeResponse> done);

  // Has the cluster load a model for a request that names it as `name`; `waiter` waits for that, as
  // LoadQueue says. One load for all requests that wait for the same file at a time. Never blocks.
  // Returns what ends the waiting when the request's client has gone.
  std::function<void()> Load(const wire::LoadModelRequest& request, const std::string& name,
                             LoadQueue::Waiter waiter);

  std::unique_ptr<wire::Coordinator::Stub> StubAt(const std::string& address);

 private:
  class Reader;
  class LoadCall;

  // RequestRunner; the first three on the loop.
  Leader FindLeader(const std::string& model) override;
  void RunHere(const wire::GenerateRequest& request, std::shared_ptr<GenerationCall> call) override;
  void RunElsewhere(const std::string& address, std::shared_ptr<RequestAttempt> attempt) override;
  void DispatchSoon() override;
  void TickSoon() override;

  template <typename Request, typename Response, typename Method>
  void CallFirstStage(const wire::ModelStatus& model, Request request, Method method,
                      OnResponse<Response> done);
  // Loop. Empty: no address of the node is known.
  std::string AddressOf(const std::string& node_id) const;
  absl::StatusOr<Models> FetchModels();
  absl::StatusOr<Models> FetchModelsOnce();
  absl::StatusOr<KnownModels> FetchKnownModels();
  // Of this node's own service, which forwards what is the coordinator's.
  std::unique_ptr<wire::Coordinator::Stub> OwnStub() const;
  void TickLoads();  // loop

  EventLoop* const loop_;
  ClusterRuntime* const cluster_;
  Coordinator* const coordinator_;
  const Options options_;
  const std::shared_ptr<CallbackGate> gate_ =
      std::make_shared<CallbackGate>();  // shared with Readers
  RequestRouter router_;
  std::string self_address_;  // constant after Start()

  std::unique_ptr<EventLoop::Handle> tick_;  // loop; while requests wait
  const std::shared_ptr<LoadQueue> loads_ =
      std::make_shared<LoadQueue>(LoadQueue::Options());  // shared with clients that wait
  std::unique_ptr<EventLoop::Handle> load_tick_;          // loop; while requests wait for a load

  absl::Mutex mu_;
  std::string channel_address_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mu_);  // shared with stubs
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::set<LoadCall*> load_calls_ ABSL_GUARDED_BY(mu_);

  CachedFetch<Models> models_;  // last: their threads use the others
  CachedFetch<KnownModels> known_models_;
};

}  // namespace strata
