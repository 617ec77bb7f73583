#include "tests/net/slow_disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace strata {
namespace {

constexpr char kMounts[] = "/sys/fs/cgroup";

bool IsVersion2() { return std::filesystem::exists(absl::StrCat(kMounts, "/cgroup.controllers")); }

absl::Status Write(const std::string& path, const std::string& value) {
  std::ofstream file(path);
  file << value << std::flush;
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, " cannot be set to ", value));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SlowDisk>> SlowDisk::Make(const std::string& file) {
  std::unique_ptr<SlowDisk> disk(new SlowDisk());
  disk->file_ = file;
  struct stat about = {};
  if (stat(file.c_str(), &about) != 0) return absl::ErrnoToStatus(errno, file);
  disk->device_ = absl::StrCat(major(about.st_dev), ":", minor(about.st_dev));
  const std::string folder =
      absl::StrCat(kMounts, IsVersion2() ? "" : "/blkio", "/strata-test-", getpid(), "-disk");
  if (IsVersion2()) {
    if (auto s = Write(absl::StrCat(kMounts, "/cgroup.subtree_control"), "+io"); !s.ok()) return s;
  }
  if (mkdir(folder.c_str(), 0755) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no control group: ", folder, ": ", strerror(errno)));
  }
  disk->folder_ = folder;
  if (absl::Status status = disk->SetSpeed(uint64_t{1} << 40); !status.ok()) return status;
  return disk;
}

SlowDisk::~SlowDisk() {
  if (!folder_.empty()) rmdir(folder_.c_str());
}

void SlowDisk::Add(pid_t pid) {
  // A process that has ended needs no group.
  Write(absl::StrCat(folder_, "/cgroup.procs"), absl::StrCat(pid)).IgnoreError();
}

absl::Status SlowDisk::SetSpeed(uint64_t bytes_per_s) {
  if (IsVersion2()) {
    return Write(
        absl::StrCat(folder_, "/io.max"),
        absl::StrCat(device_, " rbps=", bytes_per_s == 0 ? "max" : absl::StrCat(bytes_per_s)));
  }
  return Write(absl::StrCat(folder_, "/blkio.throttle.read_bps_device"),
               absl::StrCat(device_, " ", bytes_per_s));
}

void SlowDisk::ForgetPages() const {
  const int fd = open(file_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
}

}  // namespace strata
