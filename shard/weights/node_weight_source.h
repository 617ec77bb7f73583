// A node that weights are fetched from: the calls of wire.Weights, with time limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/weights.grpc.pb.h"
#include "shard/weights/weight_source.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace strata {

// Longest time between two messages with weights or a model's description.
inline constexpr absl::Duration kWeightIdleMax = absl::Seconds(20);

class NodeWeightSource final : public WeightSource {
 public:
  NodeWeightSource(std::string model_id, std::string address, absl::Duration idle_max);

  const std::string& address() const override { return address_; }
  // Fails at once if refused, after 5 s of silence.
  absl::Status Connect() override;
  void Cancel() override;
  absl::Status Describe(WeightCache* cache) override;
  absl::StatusOr<std::vector<bool>> List(size_t n_blocks) override;  // takes at most 5 s
  absl::Status Hash(const std::vector<uint32_t>& blocks, bool known_only, OnHash on_hash) override;
  bool sends_hashes() const override { return true; }
  absl::Status Read(const WeightBlocks& all, const std::vector<uint32_t>& blocks,
                    OnChunk on_chunk) override;

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
