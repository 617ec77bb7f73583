// Layers [begin, end) of a model, presented as a smaller GGUF model of the same architecture that
// libllama loads. A slice is described, not written: a header of its own and pieces of the model's
// files, read as a stream.
//
// Changes: block_count and per-layer metadata (architecture.h), tensors blk.N renamed to
// blk.(N - begin); a slice that is not first or last gets a one-row vocabulary; the first of
// several keeps its real token_embd and gets a placeholder output, the last the other way round,
// where the model does not tie the two. Placeholders are never computed with, but take memory:
// their bytes count in the slice.
//
// Only a slice that is the whole model is memory-mapped (stage.cc maps the model's own file). For
// the others there is no file to map: libllama wants the data section behind the header at one
// offset of one file, a memfd cannot alias another file's pages, and a reflink needs btrfs or XFS
// and tensors on block boundaries. It would save little: weights that are repacked for the CPU's
// matrix kernels or copied to a GPU take memory of their own anyway, and what was read stays in the
// page cache only while there is room.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shard/model/architecture.h"
#include "shard/model/model_file.h"

namespace strata {

struct SliceOptions {
  bool unverified = false;  // cut an architecture that is not in the table
  // BLAKE3 of each block of source_tensors() (weight_blocks.h), concatenated. If given, the slice
  // reads each block as a whole and verifies it before it returns a byte of it; bytes outside
  // blocks are not read at all. Empty: the files are trusted.
  std::string block_hashes;
};

// Immutable; safe to read from any thread.
class Slice {
 public:
  // kInvalidArgument: the range is empty or outside the model, or there are not as many hashes as
  // blocks. kFailedPrecondition: the
  // architecture may not be cut there (the message lists where it may). kUnimplemented: unknown
  // architecture.
  static absl::StatusOr<Slice> Make(const std::shared_ptr<const ModelFile>& model,
                                    LayerRange layers, SliceOptions options);

  LayerRange layers() const { return layers_; }
  bool is_first() const { return layers_.begin == 0; }
  bool is_last() const;
  bool is_whole() const { return is_first() && is_last(); }
  // Whether the slice carries the tokenizer: first and last do.
  bool has_vocabulary() const { return is_first() || is_last(); }

  const ModelFile& model() const { return *model_; }
  const std::shared_ptr<const ModelFile>& shared_model() const { return model_; }
  const GgufHeader& header() const { return header_; }

  // The tensors whose data the slice takes from the model, in order, as indices into
  // model().header().tensors: besides the header, the needed parts of the model's files. (Padding
  // between them is read too, and ignored.)
  const std::vector<size_t>& source_tensors() const { return source_tensors_; }

  // Of the GGUF that Open() streams, and of its tensors alone.
  uint64_t file_bytes() const;
  uint64_t tensor_bytes() const { return tensor_bytes_; }

  // The slice as a read-only, seekable stream (fopencookie, funopen on macOS) for
  // llama_model_load_from_file_ptr with load mode none. The stream keeps the model open and is used
  // by one thread at a time. Close with fclose(). A failed read sets `error`, if given, which must
  // outlive the stream.
  absl::StatusOr<FILE*> Open(absl::Status* error = nullptr) const;

  // Reads up to `size` bytes at `offset` of the slice's GGUF; what Open() streams. kUnavailable: an
  // I/O error; kDataLoss: a block does not match its hash, or cannot be read; names block and file.
  // Thread-safe, blocks.
  absl::StatusOr<size_t> ReadAt(uint64_t offset, char* out, size_t size) const;

 private:
  struct Content;  // header and pieces of the model's files
  struct Stream;   // what Open() gives its FILE

  Slice() = default;

  std::shared_ptr<const ModelFile> model_;  // shared with its opener and with open streams
  LayerRange layers_;
  GgufHeader header_;
  std::shared_ptr<const Content> content_;  // shared with copies and open streams
  std::vector<size_t> source_tensors_;
  uint64_t tensor_bytes_ = 0;
};

}  // namespace strata
