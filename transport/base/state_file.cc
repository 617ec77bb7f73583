#include "transport/base/state_file.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstdio>

#include "absl/status/status.h"

namespace strata {

absl::StatusOr<Descriptor> LockFile(const std::string& path) {
  Descriptor lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return absl::ErrnoToStatus(errno, path);
  while (flock(lock.fd(), LOCK_EX) != 0) {
    if (errno != EINTR) return absl::ErrnoToStatus(errno, path);
  }
  return lock;
}

absl::StatusOr<std::string> SetAside(const std::string& path) {
  std::string name = path + ".unusable";
  if (rename(path.c_str(), name.c_str()) != 0) return absl::ErrnoToStatus(errno, path);
  return name;
}

}  // namespace strata
