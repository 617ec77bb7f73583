// The gRPC service of a node, wire.Node: takes the coordinator's requests on gRPC's threads and
// hands them to the loop, where StageHost answers them. A client's deadline and cancellation are
// forwarded to the worker. The disk is read on a thread of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/models/self_test_file.h"
#include "node/base/cached_fetch.h"
#include "node/hub/local_models.h"
#include "node/measure/benchmarks.h"
#include "node/workers/stage_host.h"
#include "proto/node.grpc.pb.h"
#include "shard/kv_store/kv_folder.h"
#include "shard/kv_transfer/kv_replicas.h"
#include "transport/base/event_loop.h"
#include "transport/base/steady_time.h"

namespace strata {

// Calls that may wait for one look for this machine's models, or for the prompts that it keeps.
inline constexpr size_t kLocalModelsWaitingMax = 64;

// REQUIRES: the loop runs until the server with this service has shut down, since calls end there.
class NodeService final : public wire::Node::CallbackService {
 public:
  struct Identity {
    std::string id;
    std::string name;
    ModelFolders models = {};   // where this machine's models are
    std::string data_dir = {};  // with their aliases; empty: there are none
    // The folder in which stages keep prompts, as StageHost::Options have it; empty: none.
    std::string kv_folder = {};
    uint64_t kv_bytes_max = 0;
    KvReplicas* replicas = nullptr;  // outlives the service
  };
  // The address by which this node reaches the node with that id; empty: not known. On the loop.
  using AddressOf = std::function<std::string(const std::string& node_id)>;

  // The problems of the cluster that this node knows of, a line each; on the loop.
  using Problems = std::function<std::vector<std::string>()>;
  // REQUIRES: the pointers outlive the service.
  NodeService(EventLoop* loop, StageHost* host, Benchmarks* benchmarks, SelfTestFile* self_tests,
              Identity identity, AddressOf address_of, Problems problems);

  // The answer to GetInfo, without self-tests. On the loop.
  wire::GetInfoResponse Info() const;

  grpc::ServerUnaryReactor* GetInfo(grpc::CallbackServerContext* context,
                                    const wire::GetInfoRequest* request,
                                    wire::GetInfoResponse* response) override;
  grpc::ServerUnaryReactor* SetDraining(grpc::CallbackServerContext* context,
                                        const wire::SetDrainingRequest* request,
                                        wire::SetDrainingResponse* response) override;
  grpc::ServerUnaryReactor* Measure(grpc::CallbackServerContext* context,
                                    const wire::MeasureRequest* request,
                                    wire::MeasureResponse* response) override;
  grpc::ServerWriteReactor<wire::LoadStageEvent>* LoadStage(
      grpc::CallbackServerContext* context, const wire::LoadStageRequest* request) override;
  grpc::ServerUnaryReactor* ConnectStage(grpc::CallbackServerContext* context,
                                         const wire::ConnectStageRequest* request,
                                         wire::ConnectStageResponse* response) override;
  grpc::ServerUnaryReactor* MoveCaches(grpc::CallbackServerContext* context,
                                       const wire::MoveCachesRequest* request,
                                       wire::MoveCachesResponse* response) override;
  grpc::ServerUnaryReactor* UnloadStage(grpc::CallbackServerContext* context,
                                        const wire::UnloadStageRequest* request,
                                        wire::UnloadStageResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const wire::TokenizeRequest* request,
                                     wire::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* ListLocalModels(grpc::CallbackServerContext* context,
                                            const wire::ListLocalModelsRequest* request,
                                            wire::ListLocalModelsResponse* response) override;
  grpc::ServerUnaryReactor* ListKvCaches(grpc::CallbackServerContext* context,
                                         const wire::ListKvCachesRequest* request,
                                         wire::ListKvCachesResponse* response) override;
  grpc::ServerUnaryReactor* ClearKvCaches(grpc::CallbackServerContext* context,
                                          const wire::ClearKvCachesRequest* request,
                                          wire::ClearKvCachesResponse* response) override;
  grpc::ServerUnaryReactor* FetchWeights(grpc::CallbackServerContext* context,
                                         const wire::FetchWeightsRequest* request,
                                         wire::FetchWeightsResponse* response) override;
  grpc::ServerUnaryReactor* SetReplicaTargets(grpc::CallbackServerContext* context,
                                              const wire::SetReplicaTargetsRequest* request,
                                              wire::SetReplicaTargetsResponse* response) override;
  grpc::ServerBidiReactor<wire::KeepReplicasRequest, wire::KeepReplicasResponse>* KeepReplicas(
      grpc::CallbackServerContext*) override {
    return identity_.replicas->Keep();
  }
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const wire::DetokenizeRequest* request,
                                       wire::DetokenizeResponse* response) override;

  // Files of models, or their aliases, have changed: ListLocalModels() looks at the disk again. Any
  // thread.
  void ForgetLocalModels() {
    absl::MutexLock lock(mu_);
    local_models_changed_ = SteadyTime::Now();
  }

 private:
  // `address` with the host by which this node reaches the node with that id, where known. Loop.
  std::string Reroute(const std::string& address, const std::string& node_id) const;
  // The same for the nodes that weights come from.
  void RerouteSources(wire::StageSpec* spec) const;

  EventLoop* const loop_;
  StageHost* const host_;
  Benchmarks* const benchmarks_;    // null: nothing is measured
  SelfTestFile* const self_tests_;  // null: none are stored
  const Identity identity_;
  const AddressOf address_of_;
  const Problems problems_;
  bool draining_ = false;                                              // loop
  using LocalModels = std::shared_ptr<const std::vector<LocalModel>>;  // shared with calls
  CachedFetch<LocalModels> local_models_;
  using KvFolders = std::shared_ptr<const std::vector<KvFolder>>;  // shared with calls
  absl::Mutex mu_;
  std::vector<std::string> to_clear_ ABSL_GUARDED_BY(mu_);  // ids of models, as in the requests
  CachedFetch<KvFolders> kv_folders_;
  SteadyTime local_models_changed_ ABSL_GUARDED_BY(mu_) = SteadyTime::InfinitePast();
};

}  // namespace strata
