// The gRPC service wire.Coordinator of every node: answers calls where this node coordinates, else
// forwards them to the node that does, so that any node's address is the cluster's.
//
// The calls run on threads of gRPC's synchronous server, since they wait for nodes and disks;
// except Generate and FinishGeneration, of which there are many: those never block a thread.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/models/coordinator.h"
#include "node/gateway/active_generations.h"
#include "node/gateway/gateway.h"
#include "proto/coordinator.grpc.pb.h"

namespace strata {

// Calls that plan, load, unload, drain or list at the same time.
inline constexpr int kCoordinatorCallsMax = 64;
// Of these, the calls that may plan, load, hold or drain: the rest is free to list and unload.
inline constexpr int kCoordinatorLongCallsMax = 48;
// Generate calls of other nodes and programs at the same time.
inline constexpr int kGenerateCallsMax = 2048;

class CoordinatorService final
    : public wire::Coordinator::WithCallbackMethod_Generate<
          wire::Coordinator::WithCallbackMethod_FinishGeneration<wire::Coordinator::Service>> {
 public:
  struct Options {
    std::string node_id;  // in hex
    int requests_max = kGenerateCallsMax;
    // How long a call waits for a coordinator, for nodes that have just met or lost theirs.
    absl::Duration leadership_time = absl::Seconds(5);
  };
  // REQUIRES: the pointers outlive the service.
  CoordinatorService(Coordinator* coordinator, Gateway* gateway, Options options);

  grpc::Status PlanModel(grpc::ServerContext* context, const wire::PlanModelRequest* request,
                         grpc::ServerWriter<wire::PlanModelEvent>* writer) override;
  grpc::Status LoadModel(grpc::ServerContext* context, const wire::LoadModelRequest* request,
                         grpc::ServerWriter<wire::LoadModelEvent>* writer) override;
  grpc::Status UnloadModel(grpc::ServerContext* context, const wire::UnloadModelRequest* request,
                           wire::UnloadModelResponse* response) override;
  grpc::Status ListModels(grpc::ServerContext* context, const wire::ListModelsRequest* request,
                          wire::ListModelsResponse* response) override;
  grpc::Status GetReport(grpc::ServerContext* context, const wire::GetReportRequest* request,
                         wire::ClusterSnapshot* response) override;
  grpc::Status ListKnownModels(grpc::ServerContext* context,
                               const wire::ListKnownModelsRequest* request,
                               wire::ListKnownModelsResponse* response) override;
  grpc::Status ListKeptPrompts(grpc::ServerContext* context,
                               const wire::ListKeptPromptsRequest* request,
                               wire::ListKeptPromptsResponse* response) override;
  grpc::Status ClearKeptPrompts(grpc::ServerContext* context,
                                const wire::ClearKeptPromptsRequest* request,
                                wire::ClearKeptPromptsResponse* response) override;
  grpc::Status MeasureNode(grpc::ServerContext* context, const wire::MeasureNodeRequest* request,
                           wire::MeasureNodeResponse* response) override;
  grpc::Status DrainNode(grpc::ServerContext* context, const wire::DrainNodeRequest* request,
                         grpc::ServerWriter<wire::DrainNodeEvent>* writer) override;
  grpc::ServerWriteReactor<wire::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context, const wire::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* FinishGeneration(grpc::CallbackServerContext* context,
                                             const wire::FinishGenerationRequest* request,
                                             wire::FinishGenerationResponse* response) override;

 private:
  class CallLimit;
  // The coordinator's stub; null: this node coordinates. Waits a little while no node does.
  // kUnavailable: no node coordinates, or the call has been forwarded once already.
  absl::StatusOr<std::unique_ptr<wire::Coordinator::Stub>> FindLeader(
      const grpc::ServerContext& context);
  // Forwards the call to the coordinator by `call(Stub*, grpc::ClientContext*, bool* answered)`;
  // nullopt: this node coordinates. Retries for a little while where the coordinator has gone
  // before it `answered`, or is no longer the leader.
  template <typename Call>
  std::optional<grpc::Status> ForwardToLeader(const grpc::ServerContext& context, Call call);

  // REQUIRES: this node coordinates. kUnavailable, AsLeaderChanged(): a leased model has gone with
  // the leadership, and the next coordinator may load it.
  absl::Status LoadHere(const grpc::ServerContext& context, const wire::LoadModelRequest& request,
                        absl::FunctionRef<bool(const wire::LoadModelEvent& event)> write);

  Coordinator* const coordinator_;
  Gateway* const gateway_;
  const Options options_;
  const std::shared_ptr<ActiveGenerations> generations_ =
      std::make_shared<ActiveGenerations>();  // shared with streams
  std::atomic<int> calls_{0};
  const std::shared_ptr<std::atomic<int>> n_requests_;  // shared with the calls in flight
};

}  // namespace strata
