// A control group with limits, for nodes on machines unlike each other: a slow one has a part of a
// core, a small one little memory. Version 1 or 2, whichever the system has; needs root, as
// networks do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace strata {

class Limits {
 public:
  // Zero and empty mean no limit.
  struct Options {
    std::string name;  // of letters and digits, one of its kind in this process
    double cpu_cores = 0;
    // Short: a machine with a slow core is slow at every moment, and not fast until the quota of a
    // tenth of a second is spent. The kernel takes 1 ms or more for the quota and for the period.
    absl::Duration cpu_period = absl::Milliseconds(10);
    std::string cpus;  // "1"
    uint64_t memory_bytes = 0;
  };
  // kPermissionDenied: the system does not let this process make it.
  static absl::StatusOr<std::unique_ptr<Limits>> Make(const Options& options);
  // REQUIRES: processes that were in it are ending.
  ~Limits();
  Limits(const Limits&) = delete;
  Limits& operator=(const Limits&) = delete;

  // The command that runs `args` inside.
  std::vector<std::string> Inside(std::vector<std::string> args) const;
  // The most memory used at one moment, with the pages of files that were read.
  uint64_t PeakMemoryBytes() const;
  // Processes that the kernel killed because the memory did not suffice.
  uint64_t OutOfMemoryKills() const;

 private:
  Limits() = default;
  std::vector<std::string> folders_;  // one, or one for each controller
  std::string memory_folder_;
};

// Why none can be made here; OK where one can.
absl::Status CanMakeLimits();

}  // namespace strata
