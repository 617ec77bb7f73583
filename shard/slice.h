// Layers [begin, end) of a model, presented as a smaller GGUF model of the same architecture that
// libllama loads. A slice is described, not written: a header of its own and pieces of the model's
// files, read as a stream.
//
// What changes: block_count and per-layer metadata (architecture.h), tensors blk.N renamed to
// blk.(N - begin); a slice that is not first or last gets a one-row vocabulary; the last slice of several keeps its real
// output and gets a placeholder token_embd where the model does not tie the two.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "shard/architecture.h"
#include "shard/model_file.h"

namespace strata {

struct SliceOptions {
  bool unverified = false;  // cut an architecture that is not in the table
};

// Immutable; safe to read from any thread.
class Slice {
 public:
  // kInvalidArgument: the range is empty or outside the model. kFailedPrecondition: the architecture
  // may not be cut there (the message lists where it may). kUnimplemented: unknown architecture.
  static absl::StatusOr<Slice> Make(std::shared_ptr<const ModelFile> model, LayerRange layers,
                                    SliceOptions options);

  LayerRange layers() const { return layers_; }
  bool is_first() const { return layers_.begin == 0; }
  bool is_last() const;
  bool is_whole() const { return is_first() && is_last(); }
  // Whether the slice carries the tokenizer: first and last do.
  bool has_vocabulary() const { return is_first() || is_last(); }

  const ModelFile& model() const { return *model_; }
  const GgufHeader& header() const { return header_; }

  // Of the GGUF that Open() streams, and of its tensors alone.
  uint64_t file_bytes() const { return file_bytes_; }
  uint64_t tensor_bytes() const { return tensor_bytes_; }

  // The slice as a read-only, seekable stream (fopencookie, funopen on macOS) for
  // llama_model_load_from_file_ptr with load mode none. The stream keeps the model open and is used
  // by one thread at a time. Close with fclose().
  absl::StatusOr<FILE*> Open() const;

  // Reads up to `size` bytes at `offset` of the slice's GGUF; what Open() streams. Thread-safe, blocks.
  absl::StatusOr<size_t> ReadAt(uint64_t offset, char* out, size_t size) const;

 private:
  // `bytes` of the slice's GGUF starting at `begin`, from a file of the model, from header_bytes_, or generated.
  struct Piece {
    enum class Kind { kFile, kMemory, kZeros };
    uint64_t begin;
    uint64_t bytes;
    Kind kind;
    size_t part;      // kFile
    uint64_t offset;  // kFile: in that file; kMemory: in memory_
  };

  Slice() = default;

  std::shared_ptr<const ModelFile> model_;  // shared with whoever opened it and with open streams
  LayerRange layers_;
  GgufHeader header_;
  std::shared_ptr<const std::string> memory_;  // header and generated tensors; shared with open streams
  std::vector<Piece> pieces_;                  // in order of `begin`, without gaps
  uint64_t file_bytes_ = 0;
  uint64_t tensor_bytes_ = 0;
};

}  // namespace strata
