// Plans around stages that are loaded already.
#include "coordinator/planner/kept_stages.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/planner_instance.h"

namespace strata::testing {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

constexpr uint64_t kGiB = 1ull << 30;

// 32 layers of 256 MiB: 8 GiB.
LayerCosts EightGiB() { return EqualLayers(32, 256 << 20); }

std::string RangesAround(const PlanRequest& request, const std::vector<KeptStage>& kept) {
  const absl::StatusOr<Plan> plan = MakePlanAround(request, kept);
  if (!plan.ok()) return plan.status().ToString();
  std::string text;
  for (const PlannedStage& stage : plan->stages) {
    absl::StrAppend(&text, text.empty() ? "" : " ", PlaceName(request, stage.device), "=",
                    stage.layers.begin, "-", stage.layers.end - 1);
  }
  return text;
}

TEST(PlanKeep, ACompletePlanStaysAsItIs) {
  const LayerCosts costs = EightGiB();
  // n1 alone would be faster.
  const PlanRequest request = RequestFor(costs, {{16 * kGiB, 50e9}, {16 * kGiB, 100e9}});
  EXPECT_EQ(RangesAround(request, {{1, {10, 32}}, {0, {0, 10}}}), "n0=0-9 n1=10-31");
}

TEST(PlanKeep, MissingLayersGoToTheDeviceThatMakesThePlanFastest) {
  const LayerCosts costs = EightGiB();
  const PlanRequest request =
      RequestFor(costs, {{16 * kGiB, 50e9}, {16 * kGiB, 50e9}, {16 * kGiB, 200e9}});
  EXPECT_EQ(RangesAround(request, {{0, {0, 10}}, {1, {20, 32}}}), "n0=0-9 n2=10-19 n1=20-31");
}

TEST(PlanKeep, ADeviceTakesAFurtherStageBesideItsOwn) {
  const LayerCosts costs = EightGiB();
  const PlanRequest request = RequestFor(costs, {{16 * kGiB, 50e9}, {4 * kGiB, 50e9}});
  // Not adjacent, and adjacent.
  EXPECT_EQ(RangesAround(request, {{0, {0, 10}}, {1, {10, 20}}}), "n0=0-9 n1=10-19 n0=20-31");
  EXPECT_EQ(RangesAround(request, {{0, {0, 10}}}), "n0=0-9 n0=10-31");
}

TEST(PlanKeep, StagesOfOneDeviceTakeTurns) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{16 * kGiB, 50e9}});
  const absl::StatusOr<Plan> whole = MakePlan(request);
  const absl::StatusOr<Plan> halves = MakePlanAround(request, {{0, {0, 16}}, {0, {16, 32}}});
  ASSERT_TRUE(whole.ok() && halves.ok());
  EXPECT_GE(halves->times[0].slowest_s, whole->times[0].slowest_s * 0.99);
}

TEST(PlanKeep, LayersThatFitNoDeviceAloneAreDivided) {
  const LayerCosts costs = EightGiB();
  const PlanRequest request =
      RequestFor(costs, {{3 * kGiB, 50e9}, {4 * kGiB, 50e9}, {4 * kGiB, 100e9}});
  EXPECT_EQ(RangesAround(request, {{0, {0, 8}}}), "n0=0-7 n1=8-16 n2=17-31");
  const PlanRequest many =
      RequestFor(costs, {{3 * kGiB, 50e9}, {2 * kGiB, 50e9}, {3 * kGiB, 50e9}, {3 * kGiB, 50e9}});
  const absl::StatusOr<Plan> plan = MakePlanAround(many, {{0, {0, 8}}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stages.size(), 4u);
}

TEST(PlanKeep, LayersWithoutRoomAroundTheOthersAreNotFound) {
  const LayerCosts costs = EightGiB();
  const PlanRequest request = RequestFor(costs, {{3 * kGiB, 50e9}, {4 * kGiB, 50e9}});
  EXPECT_THAT(MakePlanAround(request, {{0, {0, 8}}}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no room")));
}

TEST(PlanKeep, AFullDiskTakesNothingNewAndKeepsItsStages) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{16 * kGiB, 50e9}, {16 * kGiB, 200e9}});
  EXPECT_EQ(RangesAround(request, {{0, {0, 10}}, {1, {20, 32}}}), "n0=0-9 n1=10-19 n1=20-31");
  // It has what it has loaded, and room for two gaps of one layer each but not both.
  PlanNode& node = request.nodes[1];
  for (uint64_t layer = 0; layer <= 32; ++layer) {
    node.fetch_bytes.push_back(std::min<uint64_t>(layer, 20) * kGiB / 4);
  }
  node.disk_free_bytes = kGiB / 4;
  EXPECT_EQ(RangesAround(request, {{0, {0, 10}}, {1, {20, 32}}}), "n0=0-9 n0=10-19 n1=20-31");
  EXPECT_EQ(RangesAround(request, {{0, {1, 10}}, {0, {11, 20}}, {1, {20, 32}}}),
            "n1=0-0 n0=1-9 n0=10-10 n0=11-19 n1=20-31");
  node.disk_free_bytes = 0;
  EXPECT_EQ(RangesAround(request, {{0, {0, 10}}, {1, {20, 32}}}), "n0=0-9 n0=10-19 n1=20-31");
}

TEST(PlanKeep, OfTwoStagesWithTheSameLayersTheLongerStays) {
  const LayerCosts costs = EightGiB();
  const PlanRequest request = RequestFor(costs, {{16 * kGiB, 50e9}, {16 * kGiB, 50e9}});
  EXPECT_EQ(RangesAround(request, {{0, {0, 10}}, {1, {5, 32}}}), "n1=0-4 n1=5-31");
}

TEST(PlanKeep, AStageOnAnExcludedDeviceDoesNotStay) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{16 * kGiB, 50e9}, {16 * kGiB, 50e9}});
  request.exclude = {"n1"};
  EXPECT_EQ(RangesAround(request, {{0, {0, 10}}, {1, {10, 32}}}), "n0=0-9 n0=10-31");
  EXPECT_THAT(MakePlanAround(request, {{1, {10, 32}}}), StatusIs(absl::StatusCode::kNotFound));
}

TEST(PlanKeep, CutsOnlyWhereTheRuleAllows) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{16 * kGiB, 50e9}, {16 * kGiB, 50e9}});
  request.rule.cut_points = {16};
  EXPECT_EQ(RangesAround(request, {{0, {0, 16}}, {1, {10, 32}}}), "n0=0-15 n0=16-31");
}

}  // namespace
}  // namespace strata::testing
