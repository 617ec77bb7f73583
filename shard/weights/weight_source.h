// One node that weights are fetched from: the calls of wire.Weights, with limits on how long it may
// let this node wait, and errors that name it.
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

// Between two messages with weights, or of what a model is.
inline constexpr absl::Duration kWeightIdleMax = absl::Seconds(20);

// Thread-safe after Connect(). Methods block. Their errors: kFailedPrecondition: the model is not
// shared there any more; kUnavailable: it has gone, or says nothing; kCancelled only by Cancel();
// else its own.
class WeightSource {
 public:
  WeightSource(std::string model_id, std::string address, absl::Duration idle_max);

  const std::string& address() const { return address_; }

  // Before all others. Refusals are told at once, silence after 5 s.
  absl::Status Connect();
  // Ends the calls under way, and those to come.
  void Cancel();

  // Makes the model known to the cache.
  absl::Status Describe(WeightCache* cache);
  // What the node can give: [n_blocks]. Ends after 5 s. kNotFound: nothing of the model.
  absl::StatusOr<std::vector<bool>> List(size_t n_blocks);
  // kNotFound as List(); it may have told some hashes before. With `known_only` it reads nothing
  // to tell them.
  using OnHash = absl::FunctionRef<void(uint32_t block, const std::string& hash)>;
  absl::Status Hash(const std::vector<uint32_t>& blocks, bool known_only, OnHash on_hash);
  // `on_chunk` says whether to go on: on false this returns OK. The chunks are whatever the node
  // sends. kNotFound, kDataLoss: the block that was to come next is not there.
  using OnChunk = absl::FunctionRef<bool(const wire::BlockChunk&)>;
  absl::Status Read(const std::vector<uint32_t>& blocks, OnChunk on_chunk);

  // An error of it, in words about it.
  absl::Status Named(const absl::Status& status) const;

 private:
  bool cancelled();
  auto Cancellable(grpc::ClientContext* context);
  // Named(), but that of a call that was cancelled here.
  absl::Status EndOf(const absl::Status& status);
  absl::Status SaidNothing() const;

  const std::string model_id_;
  const std::string address_;
  const absl::Duration idle_max_;
  std::unique_ptr<wire::Weights::Stub> stub_;  // constant after Connect()

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
