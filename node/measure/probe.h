// `strata probe`: lists this machine's devices, and measures how fast ggml is on them. A process of
// its own, because a device's driver may abort; started by a node (device_benchmark.h) or by hand.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace strata {

struct ProbeRunOptions {
  std::string device;      // measure this one; empty: list all, measuring none
  uint32_t n_threads = 0;  // 0: one for each core
  int64_t budget_ms = 4000;
};

// Prints one line of JSON for each device, a wire::DeviceInfo. Blocks. Errors of ProbeDevice();
// kUnavailable: stdout cannot be written.
absl::Status RunProbe(const ProbeRunOptions& options);

}  // namespace strata
