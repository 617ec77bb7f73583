#include "tests/bench/by_memory.h"

#include <algorithm>

#include "coordinator/planner/planner.h"

namespace strata {

std::vector<uint32_t> LayersByMemory(const PlanRequest& request) {
  const LayerCosts& costs = *request.costs;
  const uint32_t n_layer = costs.n_layer();
  const size_t n = request.devices.size();
  double total = 0, before = 0;
  for (const PlanDevice& device : request.devices) {
    total += static_cast<double>(device.memory_free_bytes);
  }
  std::vector<uint32_t> counts;
  uint32_t given = 0;
  for (const PlanDevice& device : request.devices) {
    before += static_cast<double>(device.memory_free_bytes);
    const auto until = static_cast<uint32_t>(n_layer * before / total + 0.5);
    counts.push_back(until - given);
    given = until;
  }
  for (uint32_t tries = 0; tries < 4 * n_layer; ++tries) {
    std::vector<double> room;
    uint32_t begin = 0;
    for (size_t i = 0; i < n; ++i) {
      double used = 0;
      if (counts[i] > 0) {
        const LayerRange range = {begin, begin + counts[i]};
        used = static_cast<double>(costs.WeightBytes(range) +
                                   ComputeBytes(costs, request.cache, range.end == n_layer)) +
               counts[i] * static_cast<double>(CacheBytes(costs.layers[0], request.cache));
      }
      room.push_back(static_cast<double>(request.devices[i].memory_free_bytes) - used);
      begin += counts[i];
    }
    const auto least = std::min_element(room.begin(), room.end()) - room.begin();
    const auto most = std::max_element(room.begin(), room.end()) - room.begin();
    if (room[static_cast<size_t>(least)] >= 0) break;
    --counts[static_cast<size_t>(least)];
    ++counts[static_cast<size_t>(most)];
  }
  return counts;
}

std::vector<Assignment> AssignLayers(const PlanRequest& request,
                                     const std::vector<uint32_t>& layers) {
  std::vector<Assignment> assignments;
  uint32_t begin = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] == 0) continue;
    assignments.push_back({PlaceName(request, i), {begin, begin + layers[i]}});
    begin += layers[i];
  }
  return assignments;
}

}  // namespace strata
