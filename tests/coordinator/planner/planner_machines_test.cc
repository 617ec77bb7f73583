// Plans where devices compete for what their machine has: twelve of them, 126 layers.
#include "tests/coordinator/planner/planner_machines.h"

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata::testing {
namespace {

using ::testing::Ge;
using ::testing::Le;
using ::testing::ValuesIn;

double CostOf(const Plan& plan) {
  double sum = plan.back_s;
  for (const PlannedStage& stage : plan.stages) sum += stage.compute_s + stage.hop_in_s;
  return sum;
}

void ExpectKeepsToMemory(const PlanRequest& request, const Plan& plan) {
  std::map<int, uint64_t> taken;
  uint32_t layer = 0;
  for (const PlannedStage& stage : plan.stages) {
    const PlanDevice& device = request.devices[stage.device];
    EXPECT_EQ(stage.layers.begin, layer);
    layer = stage.layers.end;
    EXPECT_LE(stage.memory_bytes(), device.memory_free_bytes);
    if (device.memory_pool != kOwnPool) taken[device.memory_pool] += stage.memory_bytes();
  }
  EXPECT_EQ(layer, request.costs->n_layer());
  for (const auto& [pool, bytes] : taken) {
    EXPECT_LE(bytes, request.memory_pools[static_cast<size_t>(pool)].free_bytes);
  }
}

// Costs of plans for these clusters in ms: the least sum, the least maximum, and the least sum with
// that maximum. Where layers are alike they are proved to be the best, by dynamic programming over
// sets of devices and by an integer program; else they are the best known.
struct BestKnown {
  Machines machines;
  double room;
  bool uneven;
  double sum_ms, max_ms, sum_at_max_ms;
};
constexpr BestKnown kBestKnown[] = {
    {Machines::kMacs, 1.4, false, 1446.026, 233.213, 1576.640},
    {Machines::kMacs, 2.0, false, 1095.669, 188.656, 1428.916},
    {Machines::kPcs, 1.4, false, 1337.925, 233.213, 1477.540},
    {Machines::kPcs, 2.0, false, 1077.589, 188.656, 1301.610},
    {Machines::kProcesses, 1.4, false, 1506.544, 679.893, 1506.544},
    {Machines::kProcesses, 2.0, false, 1101.818, 438.887, 1227.412},
    {Machines::kPairs, 1.4, false, 327.500, 36.553, 420.728},
    {Machines::kPairs, 2.0, false, 296.664, 36.474, 419.833},
    {Machines::kTriples, 1.4, false, 349.703, 55.006, 523.590},
    {Machines::kTriples, 2.0, false, 307.822, 49.819, 565.279},
    {Machines::kMixed, 1.4, false, 396.684, 115.930, 517.514},
    {Machines::kMixed, 2.0, false, 304.256, 77.739, 379.327},
    {Machines::kOne, 1.4, false, 272.353, 271.765, 272.353},
    {Machines::kOne, 2.0, false, 268.129, 267.861, 268.449},
    {Machines::kMacs, 1.4, true, 1603.473, 251.304, 2043.704},
    {Machines::kMacs, 2.0, true, 1191.547, 199.327, 1792.796},
    {Machines::kPcs, 1.4, true, 1485.274, 251.304, 1657.530},
    {Machines::kPcs, 2.0, true, 1158.852, 198.907, 1480.054},
    {Machines::kProcesses, 2.0, true, 1206.025, 487.498, 1349.498},
};

class PlannerMachines : public ::testing::TestWithParam<BestKnown> {};

TEST_P(PlannerMachines, TwelveDevicesThatShareGetAPlanThatIsNearlyTheBest) {
  const BestKnown& best = GetParam();
  const LayerCosts costs = ManyLayers(best.uneven);
  PlanRequest request = RequestForMachines(costs, {.machines = best.machines, .room = best.room});
  request.batch = 1;
  request.with_hints = false;
  const absl::StatusOr<Plan> latency = MakePlan(request);
  ASSERT_TRUE(latency.ok()) << latency.status();
  ExpectKeepsToMemory(request, *latency);
  EXPECT_THAT(CostOf(*latency) * 1e3, Le(best.sum_ms * 1.005));

  request.objective = Objective::kThroughput;
  const absl::StatusOr<Plan> throughput = MakePlan(request);
  ASSERT_TRUE(throughput.ok()) << throughput.status();
  ExpectKeepsToMemory(request, *throughput);
  EXPECT_THAT(throughput->times[0].slowest_s * 1e3, Le(best.max_ms * 1.005));
  EXPECT_THAT(CostOf(*throughput) * 1e3, Le(best.sum_at_max_ms * 1.02));
  if (best.uneven) return;  // another plan may be better there
  EXPECT_THAT(CostOf(*latency) * 1e3, Ge(best.sum_ms * (1 - 1e-4)));
  EXPECT_THAT(throughput->times[0].slowest_s * 1e3, Ge(best.max_ms * (1 - 1e-4)));
}

INSTANTIATE_TEST_SUITE_P(All, PlannerMachines, ValuesIn(kBestKnown));

TEST(Planner, IsDeterministic) {
  const LayerCosts costs = ManyLayers(/*uneven=*/true);
  const PlanRequest request = RequestForMachines(costs, {.machines = Machines::kPcs, .seed = 2});
  const absl::StatusOr<Plan> once = MakePlan(request), again = MakePlan(request);
  ASSERT_TRUE(once.ok() && again.ok()) << once.status();
  EXPECT_EQ(CostOf(*once), CostOf(*again));
  EXPECT_EQ(once->hints, again->hints);
}

}  // namespace
}  // namespace strata::testing
