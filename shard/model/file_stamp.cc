#include "shard/model/file_stamp.h"

#include <errno.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

int64_t Nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + int64_t{time.tv_nsec};
}

}  // namespace

std::string FileStamp::Text() const {
  return absl::StrCat(bytes, " ", device, " ", inode, " ", modified_ns, " ", changed_ns);
}

FileStamp StampOf(const struct stat& info) {
#ifdef __APPLE__
  const timespec& modified = info.st_mtimespec;
  const timespec& changed = info.st_ctimespec;
#else
  const timespec& modified = info.st_mtim;
  const timespec& changed = info.st_ctim;
#endif
  return {.device = static_cast<uint64_t>(info.st_dev),
          .inode = static_cast<uint64_t>(info.st_ino),
          .bytes = static_cast<uint64_t>(info.st_size),
          .modified_ns = Nanoseconds(modified),
          .changed_ns = Nanoseconds(changed)};
}

absl::StatusOr<FileStamp> StampAt(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  return StampOf(info);
}

}  // namespace strata
