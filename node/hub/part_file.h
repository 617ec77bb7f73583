// A file that is being fetched: its bytes so far, and which are missing, kept over restarts of the
// program and of the machine. One process at a time has it. Thread-compatible, but for Write().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

struct MissingRange {
  uint64_t begin = 0, end = 0;
};

// The files beside `path` while it is fetched; some may not be there. The first one has the bytes.
std::vector<std::string> PartFilesOf(const std::string& path);

// The progress of a fetch that may be running, or was interrupted.
struct PartProgress {
  uint64_t bytes_here = 0;
  uint64_t bytes = 0;       // of the whole; 0: unknown
  bool is_running = false;  // a process has it
};
PartProgress ProgressOfPart(const std::string& path);

class PartFile {
 public:
  // Waits while another process has it, which it tells `waiting` once. kAlreadyExists: that one has
  // finished `path`. kCancelled: `cancelled` says so. Else errors of the file system.
  static absl::StatusOr<PartFile> Open(const std::string& path,
                                       const std::function<bool()>& cancelled,
                                       const std::function<void()>& waiting);
  // Of what is there, or was: to Discard() it. kFailedPrecondition: another process has it;
  // kNotFound: there are no bytes of it.
  static absl::StatusOr<PartFile> OpenLeftover(const std::string& path);
  PartFile(PartFile&& other) noexcept;
  PartFile& operator=(PartFile&&) = delete;
  ~PartFile();

  // Keeps what is there if it is of this content and length; else empties it. An empty `validator`
  // names none. True: something was there, and is of another content.
  absl::StatusOr<bool> Begin(const std::string& validator, uint64_t bytes);
  // Gives the file its length; what is missing is a hole.
  absl::Status Resize();
  const std::vector<MissingRange>& missing() const { return missing_; }
  uint64_t bytes_missing() const;
  bool HasBytes() const;  // something would be lost if it were removed

  // Any thread. kResourceExhausted: the disk is full.
  absl::Status Write(uint64_t offset, absl::string_view bytes) const;
  // Writes down that all but `missing` is on the disk.
  absl::Status Save(std::vector<MissingRange> missing);
  // Hex digits of the SHA-256 of all of it.
  absl::StatusOr<std::string> Sha256(const std::function<bool()>& cancelled) const;
  // Gives the file its name, durably.
  absl::Status Finish();
  // Removes it, and all that is beside it.
  void Discard();

 private:
  PartFile() = default;

  std::string path_;  // the final one
  int fd_ = -1;
  std::string validator_;
  uint64_t bytes_ = 0;
  std::vector<MissingRange> missing_;
};

}  // namespace strata
