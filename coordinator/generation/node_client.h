// The coordinator's client of one node's control service (proto/node.proto). Calls block; they are
// made from the coordinator's worker threads, never on the loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "proto/node.pb.h"
#include "proto/weights.pb.h"

namespace strata {

// Thread-safe. Errors carry the node's name; errors from the node itself keep their code.
class NodeClient {
 public:
  // Waits for the node to answer and checks its versions. kUnavailable: no answer within
  // `timeout_ms`; kFailedPrecondition: incompatible versions.
  struct Options {
    std::string address;
    int64_t timeout_ms = 10'000;
    bool allow_mixed_versions = false;
    // Whether to wait for a node that is not up yet, within the time.
    bool wait_for_ready = true;
  };
  static absl::StatusOr<std::unique_ptr<NodeClient>> Connect(const Options& options);
  // Of a node whose `info` is known: calls nothing yet.
  static std::unique_ptr<NodeClient> For(const std::string& address,
                                         const wire::GetInfoResponse& info);
  virtual ~NodeClient() = default;

  virtual const std::string& id() const = 0;
  virtual const std::string& name() const = 0;
  virtual const std::string& address() const = 0;

  virtual absl::StatusOr<wire::GetInfoResponse> GetInfo(int64_t timeout_ms) = 0;
  // The model's self-tests that the node keeps.
  virtual absl::StatusOr<std::vector<wire::SelfTest>> SelfTestsOf(const std::string& model_id,
                                                                  int64_t timeout_ms) = 0;
  virtual absl::Status FetchWeights(const wire::FetchWeightsRequest& request,
                                    int64_t timeout_ms) = 0;

  // Starts to measure devices and links again; GetInfo reports when that is done.
  virtual absl::Status Measure(int64_t timeout_ms) = 0;
  // The models whose files the node has.
  virtual absl::StatusOr<wire::ListLocalModelsResponse> ListLocalModels(int64_t timeout_ms) = 0;
  // The prompts that the node keeps on its disk.
  virtual absl::StatusOr<wire::ListKvCachesResponse> ListKvCaches(int64_t timeout_ms) = 0;
  // Removes them where no stage has them open, of a model or, with an empty id, of all.
  virtual absl::Status ClearKvCaches(const std::string& model_id, int64_t timeout_ms) = 0;

  // `progress` is called on this thread, several times a second, also without news; false cancels
  // the load.
  using Progress = absl::FunctionRef<bool(const wire::LoadProgress&)>;
  virtual absl::StatusOr<wire::StageInfo> LoadStage(const wire::StageSpec& spec,
                                                    Progress progress) = 0;
  // Lets the other nodes read the weights of the node's file `path`. Returns the model's id.
  virtual absl::StatusOr<std::string> ShareModel(const std::string& path) = 0;
  // The blocks of a model's weights that the node can give. kNotFound: nothing. Ends after 5 s.
  virtual absl::StatusOr<wire::BlockList> ListBlocks(const std::string& model_id) = 0;
  virtual absl::Status ConnectStage(const wire::ConnectStageRequest& request) = 0;
  virtual absl::Status SetReplicaTargets(const wire::SetReplicaTargetsRequest& request,
                                         int64_t timeout_ms) = 0;
  // `should_continue` is called several times a second on this thread; false ends the call
  // (kCancelled).
  using ShouldContinue = absl::FunctionRef<bool()>;
  // No deadline: as long as the network needs.
  virtual absl::StatusOr<wire::MoveCachesResponse> MoveCaches(
      const wire::MoveCachesRequest& request, ShouldContinue should_continue) = 0;
  virtual absl::Status UnloadStage(const wire::UnloadStageRequest& request,
                                   ShouldContinue should_continue) = 0;
  // Does not block; `done` is called once on a thread of gRPC's, maybe after this client is gone.
  // The function returned cancels the call: any thread, any number of times, also after its end.
  using Tokenized = absl::AnyInvocable<void(absl::StatusOr<wire::TokenizeResponse>) &&>;
  using CancelCall = std::function<void()>;
  virtual CancelCall TokenizeAsync(const wire::TokenizeRequest& request, Tokenized done) = 0;
  // Whether the node is to take new stages.
  virtual absl::Status SetDraining(bool draining) = 0;
};

}  // namespace strata
