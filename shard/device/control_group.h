// What Linux's control groups, version 1 or 2, allow this process. Containers, services and people
// set such limits, and neither the number of cores nor the memory of the machine shows them. Other
// systems have none. Reads a few small files; any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "absl/time/time.h"

namespace strata {

// A process is limited by its group and by all above it. Of each thing, the tightest limit, and the
// name of the group that sets it: equal for those that share it, also seen from two containers;
// empty where there is no limit.
struct ControlGroup {
  uint64_t memory_bytes = std::numeric_limits<uint64_t>::max();
  std::string memory_group;
  double cpu_cores = std::numeric_limits<double>::infinity();  // that may be busy, on average …
  absl::Duration cpu_period = absl::ZeroDuration();            // … over this time
  std::string cpu_group;
  std::string cpus;  // "0-3,8": those it may run on, where these are not all of the machine
};

// `root` stands in for "/" in tests.
ControlGroup ReadControlGroup(const std::string& root = "");

}  // namespace strata
