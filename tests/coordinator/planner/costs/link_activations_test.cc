#include "coordinator/planner/costs/link_activations.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status_matchers.h"
#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/planner_instance.h"

namespace strata::testing {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint32_t kWidth = 4096;  // 16 KiB a row
constexpr uint64_t kGiB = 1ull << 30;

// 20 ms for the weights, 2 ms for each row.
double Cpu(uint32_t rows) { return 20e-3 + 2e-3 * rows; }

wire::ActivationRule RuleAt(double bytes_per_s, uint32_t n_embd = kWidth) {
  return ChooseActivations({.bytes_per_s = bytes_per_s, .n_embd = n_embd, .rows_max = 512}, Cpu);
}

TEST(ParseActivations, TakesTypesAndAuto) {
  EXPECT_EQ(ParseActivations("")->type, wire::F32);
  EXPECT_FALSE(ParseActivations("")->is_auto);
  EXPECT_EQ(ParseActivations("bf16")->type, wire::BF16);
  EXPECT_EQ(ParseActivations("q8_0")->type, wire::Q8_0);
  EXPECT_TRUE(ParseActivations("auto")->is_auto);
  EXPECT_THAT(ParseActivations("int4"), StatusIs(absl::StatusCode::kInvalidArgument,
                                                 HasSubstr("\"int4\" is not understood")));
}

TEST(ChooseActivations, AFastLinkCarriesF32) {
  EXPECT_EQ(RuleAt(1e9).type(), wire::F32);  // a row: 0.016 ms of 2
  EXPECT_EQ(RuleAt(1e9).f32_rows_max(), 0u);
}

TEST(ChooseActivations, ALinkThatWasNotMeasuredCarriesF32) {
  EXPECT_EQ(RuleAt(0).type(), wire::F32);
  EXPECT_EQ(RuleAt(std::nan("")).type(), wire::F32);
}

// 0.16 ms a row are less than 5 % of a decode's 22 ms, and more than 5 % of a prompt's 2 ms a row.
TEST(ChooseActivations, ASlowerLinkCarriesDecodesAsTheyAre) {
  const wire::ActivationRule rule = RuleAt(100e6);
  EXPECT_EQ(rule.type(), wire::F16);
  EXPECT_EQ(rule.f32_rows_max(), 8u);  // 1.3 of 36 ms; 16 would be 2.62 of 52
}

TEST(ChooseActivations, TheRuleIsTheLargestPowerOfTwoThatKeepsToTheShare) {
  for (const double bytes_per_s : {150e6, 100e6, 50e6, 20e6, 10e6}) {
    const wire::ActivationRule rule = RuleAt(bytes_per_s);
    const auto share = [&](uint32_t rows) { return rows * 4.0 * kWidth / bytes_per_s / Cpu(rows); };
    ASSERT_NE(rule.type(), wire::F32);
    EXPECT_LE(share(rule.f32_rows_max()), kF32TimeShareMax) << bytes_per_s;
    EXPECT_GT(share(std::max(1u, 2 * rule.f32_rows_max())), kF32TimeShareMax) << bytes_per_s;
  }
}

TEST(ChooseActivations, ASlowLinkCarriesBlocksWhereRowsHaveThem) {
  // A row of f16: 1.6 ms.
  EXPECT_EQ(RuleAt(5e6).type(), wire::Q8_0);
  EXPECT_EQ(RuleAt(5e6).f32_rows_max(), 0u);
  EXPECT_EQ(RuleAt(5e6, 4100).type(), wire::F16);
}

TEST(ChooseActivations, StepsMayHaveOneRowOnly) {
  const LinkLoad link = {.bytes_per_s = 100e6, .n_embd = kWidth, .rows_max = 1};
  EXPECT_EQ(ChooseActivations(link, Cpu).type(), wire::F32);
}

// Two machines, each with room for half of 8 GiB, on a link of so many bytes a second.
PlanRequest TwoHalves(const LayerCosts& costs, double bytes_per_s, ActivationChoice choice) {
  PlanRequest request = RequestFor(costs, {{6 * kGiB, 50e9}, {6 * kGiB, 50e9}},
                                   {.round_trip_s = 1e-3, .bytes_per_s = bytes_per_s});
  request.cache.n_ctx = 512;
  request.cache.n_batch = 512;
  request.activations = choice;
  return request;
}

TEST(PlannedActivations, HopsTakeTheBytesThatAreSent) {
  const LayerCosts costs = EqualLayers(32, 256 << 20);
  const auto exact = MakePlan(TwoHalves(costs, 1e6, {}));
  const auto half = MakePlan(TwoHalves(costs, 1e6, {.type = wire::F16}));
  ASSERT_TRUE(exact.ok() && half.ok());
  ASSERT_THAT(exact->stages, SizeIs(2));
  EXPECT_EQ(exact->stages[0].sends.type(), wire::F32);
  EXPECT_EQ(half->stages[0].sends.type(), wire::F16);
  EXPECT_EQ(half->stages[1].sends.type(), wire::F32);  // the last stage sends none
  EXPECT_NEAR(exact->stages[1].hop_in_s - half->stages[1].hop_in_s, 8192e-6, 1e-9);
  EXPECT_NEAR(exact->prompt.slowest_s - half->prompt.slowest_s, 128 * 8192e-6, 1e-6);
}

TEST(PlannedActivations, AutoChoosesByTheLink) {
  const LayerCosts costs = EqualLayers(32, 256 << 20);
  const auto fast = MakePlan(TwoHalves(costs, 1e9, {.is_auto = true}));
  const auto slow = MakePlan(TwoHalves(costs, 10e6, {.is_auto = true}));
  const auto exact = MakePlan(TwoHalves(costs, 10e6, {}));
  ASSERT_TRUE(fast.ok() && slow.ok() && exact.ok());
  EXPECT_EQ(fast->stages[0].sends.type(), wire::F32);
  ASSERT_NE(slow->stages[0].sends.type(), wire::F32);
  // A decode of some 80 ms does not mind 1.6 ms; a prompt does.
  EXPECT_GE(slow->stages[0].sends.f32_rows_max(), 1u);
  EXPECT_LT(slow->stages[0].sends.f32_rows_max(), kPlanChunkTokens);
  EXPECT_EQ(slow->stages[1].hop_in_s, exact->stages[1].hop_in_s);
  EXPECT_LE(slow->prompt.step_s, exact->prompt.step_s);
  EXPECT_EQ(slow->times[0].step_s, exact->times[0].step_s);
}

TEST(PlannedActivations, WorkersOfOneNodeSendF32) {
  const LayerCosts costs = EqualLayers(32, 256 << 20);
  PlanRequest request = TwoHalves(costs, 1e6, {.is_auto = true});
  request.devices[1].node = 0;
  request.devices[1].name = "GPU";
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->stages, SizeIs(2));
  EXPECT_EQ(plan->stages[0].sends.type(), wire::F32);
}

TEST(PlannedActivations, BlocksThatDoNotFitAreRefusedByHandAndNotChosen) {
  LayerCosts costs = EqualLayers(32, 256 << 20);
  costs.n_embd = 4100;
  EXPECT_THAT(MakePlan(TwoHalves(costs, 1e6, {.type = wire::Q8_0})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--activations: activations cannot go as q8_0")));
  const auto plan = MakePlan(TwoHalves(costs, 1e6, {.is_auto = true}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stages[0].sends.type(), wire::F16);
}

}  // namespace
}  // namespace strata::testing
