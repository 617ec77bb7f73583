// A disk that is as slow as a test wants, for some processes: a control group whose reads the
// kernel slows down. Version 1 or 2, whichever the system has; needs root, and a disk that is a
// device.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace strata {

class SlowDisk {
 public:
  // The disk that `file` is on. kUnavailable: the system does not let this process slow it down.
  static absl::StatusOr<std::unique_ptr<SlowDisk>> Make(const std::string& file);
  // REQUIRES: processes that were in it are ending.
  ~SlowDisk();
  SlowDisk(const SlowDisk&) = delete;
  SlowDisk& operator=(const SlowDisk&) = delete;

  // Slows that process, and its later children.
  void Add(pid_t pid);
  // The speed for all of them; 0: as fast as the disk is.
  absl::Status SetSpeed(uint64_t bytes_per_s);
  // Pages of the file that no process has mapped are read from the disk next time.
  void ForgetPages() const;

 private:
  SlowDisk() = default;
  std::string file_;
  std::string device_;  // "major:minor"
  std::string folder_;
};

}  // namespace strata
