// A place from which weights are fetched: a node (node_weight_source.h), or a web server
// (web_weight_source.h). Errors name it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/weights.pb.h"
#include "shard/model/weight_blocks.h"
#include "shard/weights/weight_cache.h"

namespace strata {

// Thread-safe after Connect(). Methods block. Their errors: kFailedPrecondition: the model is not
// there any more; kUnavailable: it is gone or silent; kCancelled: only by Cancel(); else its own
// errors.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const std::string& address() const = 0;  // for people

  // REQUIRES: called before all other methods.
  virtual absl::Status Connect() = 0;
  // Ends running and future calls.
  virtual void Cancel() = 0;

  // Adds the model to the cache.
  virtual absl::Status Describe(WeightCache* cache) = 0;
  // The blocks that are there: [n_blocks]. kNotFound: nothing of the model.
  virtual absl::StatusOr<std::vector<bool>> List(size_t n_blocks) = 0;
  // Requests hashes. kNotFound as List(); some hashes may have been reported before. With
  // `known_only` no data is read for them.
  using OnHash = absl::FunctionRef<void(uint32_t block, const std::string& hash)>;
  virtual absl::Status Hash(const std::vector<uint32_t>& blocks, bool known_only,
                            OnHash on_hash) = 0;
  // Whether the last chunk of a block that is read has its hash.
  virtual bool sends_hashes() const = 0;
  // Reads `blocks` of `all`, the model's. `on_chunk` returns whether to continue; on false this
  // returns OK. The chunks are unchecked. kNotFound, kDataLoss: the next block is not there.
  using OnChunk = absl::FunctionRef<bool(const wire::BlockChunk&)>;
  virtual absl::Status Read(const WeightBlocks& all, const std::vector<uint32_t>& blocks,
                            OnChunk on_chunk) = 0;

  // The error with the address.
  absl::Status Named(const absl::Status& status) const;
};

}  // namespace strata
