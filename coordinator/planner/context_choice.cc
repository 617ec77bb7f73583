#include "coordinator/planner/context_choice.h"

#include <algorithm>
#include <set>
#include <utility>

#include "coordinator/planner/planner.h"

namespace strata {
namespace {

constexpr uint32_t kContextStep = 1024;
constexpr double kSlowdownMax = 1.02;

// Bytes that the plan leaves free on its devices.
uint64_t BytesLeft(const PlanRequest& request, const Plan& plan) {
  uint64_t free = 0, used = 0;
  std::set<int> pools;
  std::set<size_t> devices;
  for (const PlannedStage& stage : plan.stages) {
    used += stage.memory_bytes();
    const PlanDevice& device = request.devices[stage.device];
    if (device.memory_pool == kOwnPool) {
      if (devices.insert(stage.device).second) free += device.memory_free_bytes;
    } else if (pools.insert(device.memory_pool).second) {
      free += request.memory_pools[static_cast<size_t>(device.memory_pool)].free_bytes;
    }
  }
  return free - std::min(free, used);
}

}  // namespace

void LengthenContext(uint32_t n_ctx_max, PlanRequest* request, Plan* plan) {
  const uint32_t n_ctx = request->cache.n_ctx;
  uint64_t cache_bytes = 0;
  for (const PlannedStage& stage : plan->stages) cache_bytes += stage.cache_bytes;
  if (n_ctx >= n_ctx_max || cache_bytes == 0 || request->cache.shares_cells()) return;
  const double growth =
      static_cast<double>(BytesLeft(*request, *plan)) / 2 / static_cast<double>(cache_bytes);
  const double fits = static_cast<double>(n_ctx) * (1 + growth);
  uint32_t longer = static_cast<uint32_t>(std::min<double>(n_ctx_max, fits));
  while (true) {
    if (longer < n_ctx_max) longer -= longer % kContextStep;
    if (longer <= n_ctx) return;
    PlanRequest other = *request;
    other.cache.n_ctx = longer;
    other.cache.kv_cells = 0;
    other.positions = request->PredictedPositions();
    auto found = MakePlan(other);
    if (found.ok() && SecondsOf(*found) <= kSlowdownMax * SecondsOf(*plan)) {
      *request = std::move(other);
      *plan = *std::move(found);
      return;
    }
    longer = longer / 4 * 3;
  }
}

}  // namespace strata
