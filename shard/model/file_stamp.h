// Identifies the file at a path and detects writes to it: inode, size and times. The time of the
// last change (ctime) cannot be set, so even a file with another's size and modification time is
// distinguished.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace strata {

struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t bytes = 0;
  int64_t modified_ns = 0;  // since 1970
  int64_t changed_ns = 0;
  bool operator==(const FileStamp&) const = default;

  // On one line.
  std::string Text() const;
};

FileStamp StampOf(const struct stat& info);
// Errors are the system's, with the path.
absl::StatusOr<FileStamp> StampAt(const std::string& path);

}  // namespace strata
