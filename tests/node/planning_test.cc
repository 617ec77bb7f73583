// What a better plan is worth.
#include "node/planning.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

Plan PlanOf(Objective objective, double step_s, double slowest_s) {
  Plan plan;
  plan.objective = objective;
  plan.times.front().step_s = step_s;
  plan.times.back().slowest_s = slowest_s;
  return plan;
}

TEST(GainOf, IsOfAStepsTimeOrOfItsSlowestStage) {
  EXPECT_DOUBLE_EQ(GainOf(PlanOf(Objective::kLatency, 4, 1), PlanOf(Objective::kLatency, 3, 1)),
                   0.25);
  EXPECT_DOUBLE_EQ(
      GainOf(PlanOf(Objective::kThroughput, 4, 2), PlanOf(Objective::kThroughput, 4, 3)), -0.5);
}

TEST(WorthOf, TextsPauseOnlyForMuch) {
  EXPECT_EQ(WorthOf(0.2, false), Worth::kMoving);
  EXPECT_EQ(WorthOf(0.19, false), Worth::kMovingIdle);
  EXPECT_EQ(WorthOf(0.19, true), Worth::kMovingIdle);
}

TEST(WorthOf, AnIdleModelMovesForLittleOrForFewerStages) {
  EXPECT_EQ(WorthOf(0.03, false), Worth::kMovingIdle);
  EXPECT_EQ(WorthOf(0.02, false), Worth::kNothing);
  EXPECT_EQ(WorthOf(0.001, true), Worth::kMovingIdle);
  EXPECT_EQ(WorthOf(0, true), Worth::kNothing);
  EXPECT_EQ(WorthOf(-0.1, false), Worth::kNothing);
}

}  // namespace
}  // namespace strata
