// The devices and the memory that an operator lets a node use: `strata node --device` and
// `--memory`. The planner sees nothing else, and stages for other devices are refused. Plain
// values; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/probe.pb.h"

namespace strata {

struct DeviceLimits {
  std::vector<std::string> devices;  // as ggml names them; empty: all
  // At most so many bytes for weights and caches.
  std::map<std::string, uint64_t> memory_of;  // by device
  uint64_t memory_of_others = 0;              // of each other device; 0: all that is free

  bool Has(absl::string_view device) const;
  // 0: all that is free.
  uint64_t MemoryOf(const std::string& device) const;
};

// `devices` as "CUDA0" or "CUDA0,CPU"; `memory` as "6GiB" for each device or "CUDA0=6GiB" for
// that one. kInvalidArgument: what is wrong, and how it is written.
absl::StatusOr<DeviceLimits> ParseDeviceLimits(const std::vector<std::string>& devices,
                                               const std::vector<std::string>& memory);

// The devices of this machine as `program probe` lists them. Blocks for some tenths of a second, 30
// s at most. kUnavailable: with the reason.
absl::StatusOr<std::vector<wire::DeviceInfo>> ListMachineDevices(const std::string& program);

// Checks that this machine has the devices that are named, as `program probe` lists them. Blocks
// for some tenths of a second, 30 s at most, if any is named. kInvalidArgument: with the names it
// has; kUnavailable: they could not be listed.
absl::Status CheckDeviceLimits(const DeviceLimits& limits, const std::string& program);

}  // namespace strata
