// Measured nodes as a plan's request has them. Pure; any thread.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/planner/problem/plan.h"
#include "shard/device/device_probe.h"

namespace strata {

// Appends a node with its measured devices; a device without types in its speed is left out.
// Devices that share the machine's memory get one pool of memory and bandwidth, CPUs one of cores;
// nodes whose machines have the same name for it (not empty) share it too. Links stay as they are.
struct MachineNames {
  absl::string_view memory;
  absl::string_view cores;
};
struct MeasuredDevice {
  DeviceFacts facts;
  DeviceSpeed speed;
};
void AddMeasuredNode(absl::string_view name, const MachineNames& machine,
                     absl::Span<const MeasuredDevice> devices, PlanRequest* request);

}  // namespace strata
