// The limits of Linux's control groups, version 1 or 2, on this process. Containers, services and
// people set such limits, and neither the machine's number of cores nor its memory shows them.
// Other systems have none. Reads a few small files; any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "absl/time/time.h"

namespace strata {

// A process is limited by its group and by all groups above it. For each resource, the tightest
// limit and the name of its group: equal for processes that share it, even in two containers; empty
// where there is no limit.
struct ControlGroup {
  uint64_t memory_bytes = std::numeric_limits<uint64_t>::max();
  std::string memory_group;
  double cpu_cores = std::numeric_limits<double>::infinity();  // average of busy cores …
  absl::Duration cpu_period = absl::ZeroDuration();            // … over this time
  std::string cpu_group;
  std::string cpus;  // "0-3,8": cores it may run on, unless these are all of the machine
};

// `root` stands in for "/" in tests.
ControlGroup ReadControlGroup(const std::string& root = "");

}  // namespace strata
