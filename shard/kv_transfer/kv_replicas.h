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
// Of a block.
inline constexpr uint64_t kReplicaBlockBytesMax = 1 << 30;
// How long copies of layers are not taken once they are released.
inline constexpr absl::Duration kReplicasReleased = absl::Seconds(30);
// How long copies are held of stages that send no more: a recovery or two.
inline constexpr absl::Duration kReplicasHeld = absl::Minutes(5);

// Any thread.
class KvReplicas {
 public:
  struct Options {
    std::string folder;             // of all stores of the node; empty: it keeps none
    uint64_t bytes_max = 0;         // of all copies; 0: it keeps none
    uint64_t others_bytes_max = 0;  // as KvStore::Options have it
  };
  static std::unique_ptr<KvReplicas> Start(Options options);
  // REQUIRES: all calls have ended.
  virtual ~KvReplicas() = default;

  // Answers a call; deletes itself. Ends with kFailedPrecondition: this node keeps none, or a stage
  // here has the store; kUnavailable: it is released; kResourceExhausted: too many calls, or the
  // disk takes no more; kInvalidArgument: what comes is no block; kDataLoss: a block does not have
  // its hash.
  virtual grpc::ServerBidiReactor<wire::KeepReplicasRequest, wire::KeepReplicasResponse>*
  Keep() = 0;
  // Closes the copies of these layers of a model, or of all where `layers` are none, of all models
  // where `model_id` is empty; and takes none of them for kReplicasReleased: a stage that is loaded
  // here opens them, or they are removed. Release() does not block, Close() waits until they are
  // closed.
  virtual void Release(const std::string& model_id, const wire::LayerRange& layers) = 0;
  virtual void Close(const std::string& model_id) = 0;

  // Those with any block, at most kReplicaCallsMax; also some time after the call that they came
  // with has ended.
  virtual std::vector<wire::HeldReplica> Held() const = 0;
};

}  // namespace strata
