// One node that weights are fetched from: the calls of wire.Weights, with time limits, and errors
// that name the node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/weights.grpc.pb.h"
#include "shard/weights/weight_cache.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace strata {

// Longest time between two messages with weights or a model's description.
inline constexpr absl::Duration kWeightIdleMax = absl::Seconds(20);

// Thread-safe after Connect(). Methods block. Their errors: kFailedPrecondition: the model is not
// shared there any more; kUnavailable: the node is gone or silent; kCancelled: only by Cancel();
// else the node's own errors.
class WeightSource {
 public:
  WeightSource(std::string model_id, std::string address, absl::Duration idle_max);

  const std::string& address() const { return address_; }

  // REQUIRES: called before all other methods. Fails at once if refused, after 5 s of silence.
  absl::Status Connect();
  // Ends running and future calls.
  void Cancel();

  // Adds the model to the cache.
  absl::Status Describe(WeightCache* cache);
  // The blocks that the node has: [n_blocks]. Takes at most 5 s. kNotFound: nothing of the model.
  absl::StatusOr<std::vector<bool>> List(size_t n_blocks);
  // Requests hashes. kNotFound as List(); some hashes may have been reported before. With
  // `known_only` the node reads no data for them.
  using OnHash = absl::FunctionRef<void(uint32_t block, const std::string& hash)>;
  absl::Status Hash(const std::vector<uint32_t>& blocks, bool known_only, OnHash on_hash);
  // `on_chunk` returns whether to continue; on false this returns OK. The chunks are unchecked.
  // kNotFound, kDataLoss: the next block is not there.
  using OnChunk = absl::FunctionRef<bool(const wire::BlockChunk&)>;
  absl::Status Read(const std::vector<uint32_t>& blocks, OnChunk on_chunk);

  // The error with the node's address.
  absl::Status Named(const absl::Status& status) const;

 private:
  bool cancelled();
  auto Cancellable(grpc::ClientContext* context);
  // Named(), or kCancelled for a call that Cancel() ended.
  absl::Status EndOf(const absl::Status& status);
  absl::Status IdleError() const;

  const std::string model_id_;
  const std::string address_;
  const absl::Duration idle_max_;
  std::unique_ptr<wire::Weights::Stub> stub_;  // constant after Connect()

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
