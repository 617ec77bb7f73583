// A model on this machine: one GGUF file or its split parts (NAME-00001-of-00003.gguf …), seen as
// one header over all of them. Opening reads headers only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "shard/model/file_stamp.h"
#include "shard/model/gguf.h"
#include "transport/base/printable_text.h"

namespace strata {

// The name of a file for people: without its folder and ending, and without the number of a part.
// Raw bytes of the file system.
std::string ModelFileStem(absl::string_view path);

// Immutable after Open(); safe to read from any thread.
class ModelFile {
 public:
  // `path` is the file, or any one of the parts. kNotFound: no such file, or a missing part, by
  // name; kInvalidArgument: not a regular file, not a GGUF, damaged, or parts that do not belong
  // together; kPermissionDenied; kResourceExhausted: too many open files; kUnavailable: an I/O
  // error. The message starts with the path.
  static absl::StatusOr<std::shared_ptr<const ModelFile>> Open(const std::string& path);

  ~ModelFile();

  // Metadata of the first part (without the split.* keys) and the tensors of all parts in order.
  // `offset` in these tensors is meaningless; use TensorAt.
  const GgufHeader& header() const { return header_; }

  struct Location {
    size_t part;      // index into paths()
    uint64_t offset;  // in that file
  };
  // `index` into header().tensors.
  const Location& TensorAt(size_t index) const { return locations_[index]; }

  const std::vector<std::string>& paths() const { return paths_; }

  // Reads exactly out.size() bytes. kUnavailable on an I/O error. Thread-safe, blocks.
  absl::Status Read(size_t part, uint64_t offset, absl::Span<char> out) const;

  // Whether the paths still name the opened files, unchanged. Fast enough for every step of a
  // stage: reads nothing. kFailedPrecondition: a file was replaced, removed or written to (also:
  // renamed, linked, or given other rights); the message names it and says what to do.
  absl::Status CheckUnchanged() const;
  // Differs for a changed file (as in CheckUnchanged()), and for other paths. 32 bytes.
  std::string file_key() const;

  // Whether [offset, offset + bytes) of the part's file has never been written: it reads as zeros.
  // False where the file system does not support the query.
  bool IsHole(size_t part, uint64_t offset, uint64_t bytes) const;

  // BLAKE3 of all parts' headers and tensor directories and of samples of up to 64 tensors' data
  // (4 KiB each, so that two trainings of one model differ), 32 bytes.
  const std::string& id() const { return id_; }

  // The ranges that id() hashes, in this order: each part's bytes before its data, then the
  // samples.
  struct Range {
    size_t part;
    uint64_t offset;  // in that file
    uint64_t bytes;
  };
  const std::vector<Range>& identity() const { return identity_; }

  uint64_t part_bytes(size_t part) const { return stamps_[part].bytes; }  // size of the file

  // general.name, else ModelFileStem(): the name for people, and for the API where no other model
  // has it (coordinator/models/model_match.h). Never empty.
  PrintableText name() const;
  PrintableText architecture() const;  // general.architecture
  uint32_t n_layer() const;            // <architecture>.block_count
  uint64_t tensor_bytes() const;       // of all tensors

 private:
  ModelFile() = default;

  GgufHeader header_;
  std::vector<Location> locations_;
  std::vector<std::string> paths_;
  std::vector<int> fds_;
  std::vector<FileStamp> stamps_;
  std::vector<Range> identity_;
  std::string id_;
};

}  // namespace strata
