// The command line's client of the service wire.Coordinator, through any node of the cluster. Calls
// block; one at a time, but for Cancel().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "node/client/cluster_client.h"
#include "proto/coordinator.pb.h"

namespace strata {

class CoordinatorClient {
 public:
  // Errors of ConnectToCluster().
  static absl::StatusOr<std::unique_ptr<CoordinatorClient>> Connect(const ClientOptions& options);
  // For the node at host:port, in a process that is secured (node/keys/node_security.h); calls
  // nothing yet.
  static std::unique_ptr<CoordinatorClient> At(const std::string& address);
  virtual ~CoordinatorClient() = default;

  using Note = absl::FunctionRef<void(const std::string& note)>;

  virtual absl::StatusOr<wire::PlanExplained> PlanModel(const wire::PlanModelRequest& request,
                                                        Note note) = 0;
  // `event` gets every event but the loaded model, which is returned. With `hold` the model stays
  // loaded until Release() or the end of this client.
  using LoadEvent = absl::FunctionRef<void(const wire::LoadModelEvent& event)>;
  struct Loaded {
    wire::ModelStatus model;
    bool was_there = false;
  };
  virtual absl::StatusOr<Loaded> LoadModel(const wire::LoadModelRequest& request,
                                           LoadEvent event) = 0;
  // Gives the lease back. Waits until the model's memory is free, or another lease holds the model;
  // does not wait where another node coordinates by now.
  virtual void Release() = 0;
  virtual absl::StatusOr<std::string> UnloadModel(const std::string& model) = 0;
  virtual absl::StatusOr<wire::ListModelsResponse> ListModels() = 0;
  // The models whose files the cluster's nodes have, loaded or not.
  virtual absl::StatusOr<wire::ListKnownModelsResponse> ListKnownModels() = 0;
  virtual absl::StatusOr<wire::ListKeptPromptsResponse> ListKeptPrompts() = 0;
  virtual absl::StatusOr<wire::ClearKeptPromptsResponse> ClearKeptPrompts(
      const std::string& model) = 0;
  // `event` returns false to cancel the request.
  using OnGenerateEvent = absl::FunctionRef<bool(const wire::GenerateEvent& event)>;
  virtual absl::Status Generate(const wire::GenerateRequest& request, OnGenerateEvent event) = 0;
  virtual absl::Status DrainNode(const wire::DrainNodeRequest& request, Note note) = 0;

  // Any thread: the call in flight and all later ones end with kCancelled; Release() does not.
  virtual void Cancel() = 0;
};

}  // namespace strata
