// What a node offers of its machine, where a person says so: `strata node --device` and `--memory`.
// The planner hears of nothing else, and stages for other devices are refused. Plain values; any
// thread.
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
  std::vector<std::string> devices;  // as ggml names them; empty: all there are
  // For weights and caches, at most.
  std::map<std::string, uint64_t> memory_of;  // by device
  uint64_t memory_of_others = 0;              // of each other device; 0: all that is free

  bool Has(absl::string_view device) const;
  // 0: all that is free.
  uint64_t MemoryOf(const std::string& device) const;
};

// `devices` as "CUDA0" or "CUDA0,CPU"; `memory` as "6GiB" for each device or "CUDA0=6GiB", which
// counts for that one. kInvalidArgument: what is wrong, and how it is written.
absl::StatusOr<DeviceLimits> ParseDeviceOffer(const std::vector<std::string>& devices,
                                              const std::vector<std::string>& memory);

// The devices of this machine as `program probe` lists them. Blocks for some tenths of a second, 30
// s at most. kUnavailable: with why.
absl::StatusOr<std::vector<wire::DeviceInfo>> ListMachineDevices(const std::string& program);

// That this machine has the devices that are named, as `program probe` lists them. Blocks for some
// tenths of a second, 30 s at most, if any is named. kInvalidArgument: with the names there are;
// kUnavailable: they could not be listed.
absl::Status CheckDeviceOffer(const DeviceLimits& offer, const std::string& program);

}  // namespace strata
