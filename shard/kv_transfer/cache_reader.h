// Reads the contents of the slots of another worker's stage: the client side of
// Worker.ReadCaches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/sync_stream.h"
#include "proto/node.grpc.pb.h"
#include "proto/node.pb.h"
#include "shard/engine/stage.h"

namespace strata {

// Cancel() on any thread, all other methods on one.
class CacheReader {
 public:
  // Bounds that the cache of a stage like the caller's never exceeds.
  struct Limits {
    uint32_t n_slots = 0;
    uint64_t part_bytes = 0;  // of a part
    uint64_t all_bytes = 0;   // of the whole call
  };

  CacheReader(const std::string& address, const wire::ReadCachesRequest& request, Limits limits);
  // Cancels the call if it is still running.
  ~CacheReader();
  CacheReader(const CacheReader&) = delete;
  CacheReader& operator=(const CacheReader&) = delete;

  // A slot's positions [part.begin, part.end); with end 0 the slot is empty now.
  struct Part {
    wire::SlotCache of;
    Stage::CachePart part;
  };
  // Returns the next part; nullopt: there are no more. Blocks; `on_piece` is called for each piece
  // of the part. kInvalidArgument: the other worker breaks the rules of Worker.ReadCaches;
  // kDataLoss: a part does not have the hash from its worker; kResourceExhausted; else the worker's
  // error. REQUIRES: no earlier call returned nullopt or an error.
  absl::StatusOr<std::optional<Part>> Next(const std::function<void()>& on_piece);
  // Ends the current and all later calls of Next() soon.
  void Cancel() { context_.TryCancel(); }

  uint64_t bytes() const { return bytes_; }  // received

 private:
  absl::Status WorkerError(const absl::Status& why) const;  // names the worker
  // Whether the piece continues `part`, or starts a part where `in_part` is false.
  bool Fits(const wire::CachePiece& piece, bool in_part, const Part& part) const;

  const std::string address_;
  const wire::ReadCachesRequest request_;
  const Limits limits_;
  const std::unique_ptr<wire::Worker::Stub> worker_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<wire::CachePiece>> reader_;  // null: not called yet
  bool is_finished_ = false;
  uint64_t bytes_ = 0;
  uint64_t counted_ = 0;  // of all_bytes
};

}  // namespace strata
