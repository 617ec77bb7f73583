// Blocks: the units in which weights are transferred, hashed and cached. A tensor's bytes, split
// every kWeightBlockBytes, numbered in the order of the tensor directory, so that every node that
// has a model's header uses the same numbers. Large enough that a hash for each is cheap, small
// enough that losing one is cheap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/weights.pb.h"
#include "shard/model/model_file.h"

namespace strata {

inline constexpr uint64_t kWeightBlockBytes = 16u << 20;
inline constexpr size_t kWeightHashBytes = 32;

struct WeightBlock {
  size_t part;      // of the model's files
  uint64_t offset;  // in that file
  uint64_t bytes;   // never 0
};

// Immutable; safe to read from any thread.
class WeightBlocks {
 public:
  explicit WeightBlocks(const ModelFile& model);

  size_t size() const { return blocks_.size(); }
  const WeightBlock& operator[](size_t block) const { return blocks_[block]; }

  // Blocks of the tensors, in ascending order. `tensors` are indices into the model's directory.
  std::vector<uint32_t> OfTensors(absl::Span<const size_t> tensors) const;
  uint64_t BytesOf(absl::Span<const uint32_t> blocks) const;

 private:
  std::vector<WeightBlock> blocks_;
  std::vector<uint32_t> first_;  // block of each tensor, and one past the last
};

// Checks a file that a user named. kInvalidArgument: a block was never written, as in an unfinished
// download; small blocks may legitimately be zeros.
absl::Status CheckNoHoles(const ModelFile& model);

// Whether each block is in a node's list: [n_blocks]. kInvalidArgument: it lists others.
absl::StatusOr<std::vector<bool>> ReadBlockList(const wire::BlockList& list, size_t n_blocks);

// Incremental BLAKE3.
class WeightHasher {
 public:
  WeightHasher();
  ~WeightHasher();
  void Add(absl::string_view bytes);
  // Of all bytes since the last Finish(): kWeightHashBytes.
  std::string Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Of these bytes alone.
std::string HashOfBytes(absl::string_view bytes);

// Hashes by block.
using WeightHashes = std::map<uint32_t, std::string>;

// The hashes in the file `path` that were stored under `key`; empty when there are none, or the
// file is damaged: they can be computed again. Blocks from `n_blocks` on are left out. Hashes of
// missing blocks go to `missing`, if not null.
WeightHashes ReadStoredHashes(const std::string& path, absl::string_view key, size_t n_blocks,
                              WeightHashes* missing = nullptr);
// Writes atomically, even if the power fails. kResourceExhausted: the disk is full.
absl::Status WriteStoredHashes(const std::string& path, absl::string_view key,
                               const WeightHashes& hashes, const WeightHashes& missing = {});

}  // namespace strata
