// The exact planner where devices compete for what their machine has: twelve of them, 126 layers.
#include "tests/coordinator/planner/planner_machines.h"

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata::testing {
namespace {

using ::testing::Le;
using ::testing::Values;

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

class PlannerMachines : public ::testing::TestWithParam<Machines> {};

TEST_P(PlannerMachines, TwelveDevicesThatShareTightMemoryAreExact) {
  const LayerCosts costs = ManyLayers(/*uneven=*/false);
  for (const Objective objective : {Objective::kLatency, Objective::kThroughput}) {
    for (const double room : {1.4, 2.5}) {
      if (room > 2 && objective == Objective::kThroughput) continue;
      PlanRequest request = RequestForMachines(costs, {.machines = GetParam(), .room = room});
      request.objective = objective;
      request.with_hints = false;
      SCOPED_TRACE(absl::StrCat("room ", room, ", objective ", static_cast<int>(objective)));
      const absl::StatusOr<Plan> plan = MakePlan(request);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_TRUE(plan->is_exact);
      EXPECT_EQ(plan->gap, 0);
      ExpectKeepsToMemory(request, *plan);
      if (objective == Objective::kThroughput) continue;
      request.search_only = true;
      const absl::StatusOr<Plan> found = MakePlan(request);
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_FALSE(found->is_exact);
      ExpectKeepsToMemory(request, *found);
      EXPECT_GE(CostOf(*found), CostOf(*plan) * (1 - 1e-9));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PlannerMachines,
                         Values(Machines::kMacs, Machines::kPcs, Machines::kProcesses,
                                Machines::kPairs, Machines::kTriples, Machines::kMixed,
                                Machines::kOne));

TEST(Planner, SaysHowFarFromTheBestItMayBeWhereThereIsNoProof) {
  const LayerCosts costs = ManyLayers(/*uneven=*/true);
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    PlanRequest request = RequestForMachines(costs, {.room = 1.4, .uneven = true, .seed = seed});
    request.with_hints = false;
    const absl::StatusOr<Plan> plan = MakePlan(request);
    if (absl::IsResourceExhausted(plan.status())) continue;
    ASSERT_TRUE(plan.ok()) << plan.status();
    ExpectKeepsToMemory(request, *plan);
    EXPECT_EQ(plan->is_exact, plan->gap == 0) << "seed " << seed;
    EXPECT_THAT(plan->gap, Le(0.05)) << "seed " << seed;
  }
}

TEST(Planner, ProvesThroughputNearlyBestWhereLayersAreUneven) {
  const LayerCosts costs = ManyLayers(/*uneven=*/true);
  for (const Machines machines : {Machines::kMacs, Machines::kProcesses, Machines::kMixed}) {
    for (const double room : {1.4, 3.0}) {
      SCOPED_TRACE(absl::StrCat("machines ", static_cast<int>(machines), ", room ", room));
      PlanRequest request =
          RequestForMachines(costs, {.machines = machines, .room = room, .seed = 2});
      request.objective = Objective::kThroughput;
      request.batch = 1;
      request.with_hints = false;
      const absl::StatusOr<Plan> plan = MakePlan(request);
      ASSERT_TRUE(plan.ok()) << plan.status();
      ExpectKeepsToMemory(request, *plan);
      EXPECT_THAT(plan->gap, Le(0.03));
    }
  }
}

TEST(Planner, SearchComesCloseWhereMachinesAreMixed) {
  const LayerCosts costs = ManyLayers(/*uneven=*/false);
  for (const double room : {1.4, 3.0}) {
    for (const uint32_t seed : {1u, 3u}) {
      SCOPED_TRACE(absl::StrCat("room ", room, ", seed ", seed));
      PlanRequest request =
          RequestForMachines(costs, {.machines = Machines::kMixed, .room = room, .seed = seed});
      request.objective = Objective::kThroughput;
      request.batch = 1;
      request.with_hints = false;
      const absl::StatusOr<Plan> exact = MakePlan(request);
      request.search_only = true;
      const absl::StatusOr<Plan> found = MakePlan(request);
      ASSERT_TRUE(exact.ok() && found.ok()) << exact.status() << found.status();
      EXPECT_TRUE(exact->is_exact);
      ExpectKeepsToMemory(request, *found);
      EXPECT_THAT(found->times[0].slowest_s, Le(exact->times[0].slowest_s * 1.02));
    }
  }
}

// Both have the least slowest part; the sum decides between such plans.
TEST(Planner, SearchFindsAShortPlanWithTheLeastSlowestPart) {
  const LayerCosts costs = ManyLayers(/*uneven=*/false);
  PlanRequest request = RequestForMachines(costs, {.room = 2.0, .seed = 2});
  request.objective = Objective::kThroughput;
  request.batch = 1;
  request.with_hints = false;
  const absl::StatusOr<Plan> exact = MakePlan(request);
  request.search_only = true;
  const absl::StatusOr<Plan> found = MakePlan(request);
  ASSERT_TRUE(exact.ok() && found.ok()) << exact.status() << found.status();
  ExpectKeepsToMemory(request, *found);
  EXPECT_THAT(found->times[0].slowest_s, Le(exact->times[0].slowest_s * 1.005));
  EXPECT_THAT(CostOf(*found), Le(CostOf(*exact) * 1.02));
}

TEST(Planner, IsDeterministic) {
  const LayerCosts costs = ManyLayers(/*uneven=*/true);
  const PlanRequest request = RequestForMachines(costs, {.machines = Machines::kPcs, .seed = 2});
  const absl::StatusOr<Plan> once = MakePlan(request), again = MakePlan(request);
  ASSERT_TRUE(once.ok() && again.ok()) << once.status();
  EXPECT_EQ(once->gap, again->gap);
  EXPECT_EQ(CostOf(*once), CostOf(*again));
  EXPECT_EQ(once->hints, again->hints);
}

}  // namespace
}  // namespace strata::testing
