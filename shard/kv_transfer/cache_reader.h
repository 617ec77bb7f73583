// What the slots of another worker's stage hold, as it comes: the client side of
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

// Cancel() on any thread, all else on one.
class CacheReader {
 public:
  // What breaks them is no cache of a stage like the one that asks.
  struct Limits {
    uint32_t n_slots = 0;
    uint64_t part_bytes = 0;  // of a part
    uint64_t all_bytes = 0;   // of the whole call
  };

  CacheReader(const std::string& address, const wire::ReadCachesRequest& request, Limits limits);
  // Nothing waits for a peer that stops, whatever it was about to send.
  ~CacheReader();
  CacheReader(const CacheReader&) = delete;
  CacheReader& operator=(const CacheReader&) = delete;

  // A slot's positions [part.begin, part.end); with end 0 the slot holds nothing any more.
  struct Part {
    wire::SlotCache of;
    Stage::CachePart part;
  };
  // Blocks; `came` is called for each piece of the part. Nothing: that was all. kInvalidArgument:
  // the other worker breaks the rules of Worker.ReadCaches; kDataLoss: a part does not have the
  // hash that it had when it was read there; kResourceExhausted; else what it says. Not again after
  // that, or an error.
  absl::StatusOr<std::optional<Part>> Next(const std::function<void()>& came);
  // Next() ends soon, and so does one that comes later.
  void Cancel() { context_.TryCancel(); }

  uint64_t bytes() const { return bytes_; }  // that came

 private:
  absl::Status Says(const absl::Status& why) const;  // as an error of that worker's
  // Whether the piece goes on with `part`, or is the first where `in_part` is false.
  bool Fits(const wire::CachePiece& piece, bool in_part, const Part& part) const;

  const std::string address_;
  const wire::ReadCachesRequest request_;
  const Limits limits_;
  const std::unique_ptr<wire::Worker::Stub> worker_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<wire::CachePiece>> reader_;  // null: not asked yet
  bool is_finished_ = false;
  uint64_t bytes_ = 0;
  uint64_t counted_ = 0;  // of all_bytes
};

}  // namespace strata
