// The gRPC service wire.Coordinator of every node: answers where this node coordinates, and passes
// the call on to the node that does otherwise, so that any node's address is the cluster's.
//
// The calls run on threads of gRPC's synchronous server, since they wait for nodes and disks; but
// for texts, of which there are many: those never block a thread.
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
// Of these, those that may plan, load, hold or drain: the others can always list and unload.
inline constexpr int kCoordinatorLongCallsMax = 48;
// Texts at the same time that other nodes and programs ask this one for.
inline constexpr int kGenerateCallsMax = 2048;

class CoordinatorService final
    : public wire::Coordinator::WithCallbackMethod_Generate<
          wire::Coordinator::WithCallbackMethod_FinishGeneration<wire::Coordinator::Service>> {
 public:
  // All outlive it.
  struct Options {
    std::string node_id;  // in hex
    int requests_max = kGenerateCallsMax;
    // For nodes that have just met, or lost their coordinator.
    absl::Duration leadership_time = absl::Seconds(5);
  };
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
  class Admission;
  // Where the call is answered: null: here. Waits a little where nobody coordinates yet.
  // kUnavailable: nobody does, or the call has been passed on once already.
  absl::StatusOr<std::unique_ptr<wire::Coordinator::Stub>> Elsewhere(
      const grpc::ServerContext& context);
  // What the node that coordinates answers to `call(Stub*, grpc::ClientContext*, bool* said)`;
  // nullopt: it is this one. Asks again for a little while where that node has gone before it
  // `said` anything, or hands over.
  template <typename Call>
  std::optional<grpc::Status> PassOn(const grpc::ServerContext& context, Call call);

  // A load where this node coordinates. kUnavailable, AsLeaderChanged(): a model that was held has
  // gone with that role, and the next coordinator may be asked to load it.
  absl::Status LoadHere(const grpc::ServerContext& context, const wire::LoadModelRequest& request,
                        absl::FunctionRef<bool(const wire::LoadModelEvent& event)> tell);

  Coordinator* const coordinator_;
  Gateway* const gateway_;
  const Options options_;
  const std::shared_ptr<ActiveGenerations> texts_ =
      std::make_shared<ActiveGenerations>();  // shared with streams
  std::atomic<int> calls_{0};
  const std::shared_ptr<std::atomic<int>> n_requests_;  // shared with the calls under way
};

}  // namespace strata
