#include "coordinator/planner/problem/measured_node.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

namespace strata {
namespace {

// Figures come from other nodes: drops those that cannot be measurements.
DeviceSpeed Sane(DeviceSpeed speed) {
  const auto is_speed = [](double x) { return x > 0 && std::isfinite(x); };
  std::erase_if(speed.types, [&](const TypeSpeed& type) {
    return !std::all_of(type.bytes_per_s.begin(), type.bytes_per_s.end(), is_speed);
  });
  for (TypeSpeed& type : speed.types) {
    auto& experts = type.expert_bytes_per_s;
    if (!std::all_of(experts.begin(), experts.end(), is_speed)) experts = {};
  }
  if (!is_speed(speed.memory_bytes_per_s)) speed.types.clear();
  for (double* each : {&speed.op_s, &speed.op_float_s}) {
    if (!is_speed(*each)) *each = 0;
  }
  return speed;
}

}  // namespace

void AddMeasuredNode(absl::string_view name, const MachineNames& machine,
                     absl::Span<const MeasuredDevice> devices, PlanRequest* request) {
  const size_t node = request->nodes.size();
  request->nodes.push_back({std::string(name)});
  // Pools are found again by name, so that nodes of one machine share them.
  const auto pool_of_memory = [&](uint64_t free_bytes) {
    auto& pools = request->memory_pools;
    for (size_t i = 0; i < pools.size(); ++i) {
      if (machine.memory.empty() || pools[i].name != machine.memory) continue;
      pools[i].free_bytes = std::min(pools[i].free_bytes, free_bytes);
      return static_cast<int>(i);
    }
    pools.push_back({std::string(machine.memory.empty() ? name : machine.memory), free_bytes});
    return static_cast<int>(pools.size() - 1);
  };
  const auto pool_of_cores = [&] {
    auto& pools = request->core_pools;
    const auto found = std::find(pools.begin(), pools.end(), machine.cores);
    if (machine.cores.empty() || found == pools.end()) {
      pools.emplace_back(machine.cores);
      return static_cast<int>(pools.size() - 1);
    }
    return static_cast<int>(found - pools.begin());
  };
  uint64_t free_bytes = 0;
  bool shares = false;
  for (const MeasuredDevice& device : devices) {
    if (!device.facts.shares_machine_memory) continue;
    shares = true;
    free_bytes = std::max(free_bytes, device.facts.memory_free_bytes);
  }
  const int pool = shares ? pool_of_memory(free_bytes) : kOwnPool;
  for (const MeasuredDevice& measured : devices) {
    PlanDevice device;
    device.speed = Sane(measured.speed);
    if (device.speed.types.empty()) continue;
    device.node = node;
    device.name = measured.facts.name;
    device.memory_free_bytes = measured.facts.memory_free_bytes;
    if (measured.facts.shares_machine_memory) device.memory_pool = device.bandwidth_pool = pool;
    device.has_own_memory = !measured.facts.shares_machine_memory;
    device.is_cpu = measured.facts.name == kCpuDevice;
    // Software devices, too.
    if (measured.facts.kind == DeviceFacts::Kind::kCpu) device.cores_pool = pool_of_cores();
    request->devices.push_back(std::move(device));
  }
}

}  // namespace strata
