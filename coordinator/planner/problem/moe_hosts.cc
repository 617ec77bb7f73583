#include "coordinator/planner/problem/moe_hosts.h"

#include <algorithm>

#include "coordinator/planner/problem/problem.h"

namespace strata {

bool IsMoeHost(const PlanRequest& request, size_t device) {
  return std::any_of(request.devices.begin(), request.devices.end(), [&](const PlanDevice& each) {
    return each.moe_host == static_cast<int>(device);
  });
}

bool SharesMoeHost(const PlanRequest& request, size_t device) {
  const PlanDevice& shares = request.devices[device];
  if (shares.memory_pool == kOwnPool) return false;
  for (const PlanDevice& each : request.devices) {
    if (each.moe_host == kNoHost || each.memory_pool != kOwnPool) continue;
    const PlanDevice& host = request.devices[static_cast<size_t>(each.moe_host)];
    if (host.memory_pool == shares.memory_pool) return true;
  }
  return false;
}

uint64_t MoeHostBytes(const PlanRequest& request, const PlanDevice& device) {
  const PlanDevice& host = request.devices[static_cast<size_t>(device.moe_host)];
  uint64_t sharing = 0, taken = ReserveOf(request, host.node);
  bool has_own_memory = false;
  for (size_t i = 0; i < request.devices.size(); ++i) {
    const PlanDevice& each = request.devices[i];
    if (each.moe_host != device.moe_host || SharesMoeHost(request, i)) continue;
    ++sharing;
    has_own_memory |= each.has_own_memory;
  }
  // Bytes that such a device's stage keeps in the machine's memory, beside the experts.
  if (has_own_memory) {
    taken += MachineBytesOf(*request.costs, request.cache, {0, request.costs->n_layer()}).all();
  }
  uint64_t bytes = host.memory_free_bytes;
  if (host.memory_pool != kOwnPool) {
    bytes = std::min(bytes, request.memory_pools[static_cast<size_t>(host.memory_pool)].free_bytes);
  }
  return (bytes > taken ? bytes - taken : 0) / std::max<uint64_t>(sharing, 1);
}

std::vector<PlanDevice> WithMoeHosts(const PlanRequest& request,
                                     const std::vector<size_t>& devices) {
  std::vector<PlanDevice> copies;
  for (const size_t device : devices) copies.push_back(request.devices[device]);
  std::vector<int> hosts;
  for (PlanDevice& copy : copies) {
    if (copy.moe_host == kNoHost) continue;
    auto found = std::find(hosts.begin(), hosts.end(), copy.moe_host);
    if (found == hosts.end()) found = hosts.insert(hosts.end(), copy.moe_host);
    copy.moe_host = static_cast<int>(devices.size()) + static_cast<int>(found - hosts.begin());
  }
  for (const int host : hosts) copies.push_back(request.devices[static_cast<size_t>(host)]);
  return copies;
}

}  // namespace strata
