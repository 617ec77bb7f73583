// Keeps copies of the KV blocks of other nodes' stages on this node's disk, for the case that it
// gets their layers: the server side of Node.KeepReplicas. A copy is a store (shard/kv_store) as
// the stage itself would have it, so that a stage that is loaded here finds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "grpcpp/support/server_callback.h"
#include "proto/node.pb.h"

namespace strata {

// Calls at a time.
inline constexpr size_t kReplicaCallsMax = 64;
// How long copies of a model are not taken once they are closed.
inline constexpr absl::Duration kReplicasClosed = absl::Seconds(30);
// How long copies are held of stages that send no more: a recovery or two.
inline constexpr absl::Duration kReplicasHeld = absl::Minutes(5);

// Any thread.
class KvReplicas {
 public:
  struct Options {
    std::string folder;          // of all stores of the node; empty: it keeps none
    uint64_t bytes_max = 0;      // of all copies; 0: it keeps none
    uint64_t all_bytes_max = 0;  // of all stores of the node; closed ones go
  };
  static std::unique_ptr<KvReplicas> Start(Options options);
  // REQUIRES: all calls have ended.
  virtual ~KvReplicas() = default;

  // Answers a call; deletes itself. Ends with kFailedPrecondition: this node keeps none, or a stage
  // here has the store; kUnavailable: it is being loaded or removed; kResourceExhausted: too many
  // calls, or the disk takes no more; kInvalidArgument: what comes is no block; kDataLoss: a block
  // does not have its hash.
  virtual grpc::ServerBidiReactor<wire::KeepReplicasRequest, wire::KeepReplicasResponse>*
  Keep() = 0;
  // A stage of these layers of a model is loaded here: its worker opens the copies, so that they
  // are closed, and no others are taken until the load has ended. Neither blocks.
  virtual void BeginLoad(const std::string& model_id, const wire::LayerRange& layers) = 0;
  virtual void EndLoad(const std::string& model_id, const wire::LayerRange& layers) = 0;
  // Closes the copies of a model, or of all where `model_id` is empty, so that they can be removed,
  // and takes none for kReplicasClosed. Blocks until they are closed.
  virtual void Close(const std::string& model_id) = 0;

  // Those with any block, at most kReplicaCallsMax; also some time after the call that they came
  // with has ended.
  virtual std::vector<wire::HeldReplica> Held() const = 0;
};

}  // namespace strata
