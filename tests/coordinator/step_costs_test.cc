#include "coordinator/step_costs.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

// Each stage takes `step_us` and `row_us` for each row.
StepCosts Linear(uint32_t n_stages, int64_t step_us, int64_t row_us) {
  StepCosts costs(n_stages);
  for (uint32_t stage = 0; stage < n_stages; ++stage) {
    for (uint32_t rows = 1; rows <= 256; ++rows)
      costs.Observe(stage, rows, step_us + row_us * rows);
  }
  return costs;
}

TEST(StepCosts, KnowsNothingAtFirst) {
  StepCosts costs(2);
  EXPECT_FALSE(costs.known());
  EXPECT_EQ(costs.Us(0, 10), 0);
  costs.Observe(0, 1, 100);
  EXPECT_FALSE(costs.known());
  costs.Observe(1, 1, 100);
  EXPECT_TRUE(costs.known());
}

TEST(StepCosts, LiesBetweenWhatWasObserved) {
  const StepCosts costs = Linear(1, 1000, 10);
  for (uint32_t rows : {1u, 2u, 7u, 60u, 200u, 300u, 1000u}) {
    EXPECT_NEAR(costs.Us(0, rows), 1000 + 10 * rows, 15) << rows;
  }
}

TEST(StepCosts, OneObservationIsALineThroughNothing) {
  StepCosts costs(1);
  costs.Observe(0, 10, 1000);
  EXPECT_EQ(costs.Us(0, 5), 500);
  EXPECT_EQ(costs.Us(0, 40), 4000);
}

TEST(StepCosts, NeverFallsWithTheRows) {
  StepCosts costs(1);
  costs.Observe(0, 1, 5000);
  costs.Observe(0, 10, 3000);
  costs.Observe(0, 5, 9000);
  double before = 0;
  for (uint32_t rows = 1; rows < 100; ++rows) {
    EXPECT_GE(costs.Us(0, rows), before);
    before = costs.Us(0, rows);
  }
}

TEST(StepCosts, AStepThatWasHeldUpIsForgotten) {
  StepCosts costs(1);
  costs.Observe(0, 4, 1'000'000);
  costs.Observe(0, 8, 2000);
  EXPECT_LE(costs.Us(0, 4), 2000);
}

TEST(StepCosts, OneHiccupCountsForLittle) {
  StepCosts costs(1);
  for (int i = 0; i < 10; ++i) costs.Observe(0, 4, 1000);
  costs.Observe(0, 4, 1'000'000);
  EXPECT_LE(costs.Us(0, 4), 1200);
  for (int i = 0; i < 30; ++i) costs.Observe(0, 4, 5000);  // it is slower now
  EXPECT_GE(costs.Us(0, 4), 4500);
}

TEST(StepCosts, TakesAtLeastWhatAFewRowsLessTookWhereNothingWasTriedLately) {
  StepCosts costs(1);
  EXPECT_EQ(costs.LeastUs(0, 8), 0);
  costs.Observe(0, 4, 2000);
  costs.Observe(0, 6, 3000);
  costs.Observe(0, 128, 128'000);
  EXPECT_EQ(costs.LeastUs(0, 4), 2000);
  EXPECT_EQ(costs.LeastUs(0, 5), 2000);
  EXPECT_EQ(costs.LeastUs(0, 6), 3000);
  EXPECT_EQ(costs.LeastUs(0, 8), 3000);
  EXPECT_EQ(costs.LeastUs(0, 20), costs.Us(0, 20));
  for (int i = 0; i < 300; ++i) costs.Observe(0, 4, 2000);
  EXPECT_EQ(costs.LeastUs(0, 6), 2000);
}

TEST(StepCosts, TakesNothingThatMakesNoSense) {
  StepCosts costs(1);
  costs.Observe(7, 1, 10);
  costs.Observe(0, 0, 10);
  costs.Observe(0, 1, -10);
  EXPECT_FALSE(costs.known());
  costs.Observe(0, UINT32_MAX, 10);
  EXPECT_TRUE(costs.known());
}

TEST(ChunkWithin, OfOneStageIsWhatTheWaitHasRoomFor) {
  const StepCosts costs = Linear(1, 10'000, 1000);
  EXPECT_NEAR(ChunkWithin(costs, {.decode_rows = 1, .chunk_max = 128, .wait_us = 50'000}), 50, 1);
  EXPECT_EQ(ChunkWithin(costs, {.decode_rows = 1, .chunk_max = 20, .wait_us = 50'000}), 20);
  EXPECT_EQ(ChunkWithin(costs, {.decode_rows = 1, .chunk_max = 128, .wait_us = 500}), 0);
}

TEST(ChunkWithin, IsPaidInEveryStage) {
  const StepCosts costs = Linear(4, 10'000, 1000);
  EXPECT_NEAR(ChunkWithin(costs, {.decode_rows = 1, .chunk_max = 128, .wait_us = 40'000}), 10, 1);
}

TEST(ChunkWithin, OnAverageEachStepOfARoundTakesItsShareOfTheWait) {
  const StepCosts costs = Linear(2, 10'000, 1000);
  const StepUnderWay decode = {.submitted_us = 0, .rows = 1, .samples = 1};
  // Alone it takes 22 ms; with steps of (22 + 40) / 2 ms a token comes 40 ms later.
  EXPECT_NEAR(ChunkWithin(costs, {.now_us = 11'000,
                                  .in_flight = absl::MakeConstSpan(&decode, 1),
                                  .chunk_max = 128,
                                  .wait_us = 100'000,
                                  .mean_wait_us = 40'000}),
              21, 3);
}

TEST(ChunkWithin, TriesAFewRowsMoreThanItKnows) {
  StepCosts costs(1);
  costs.Observe(0, 1, 20'000);
  costs.Observe(0, 2, 40'000);
  costs.Observe(0, 128, 1'000'000);
  const ChunkQuestion question = {
      .decode_rows = 1, .chunk_max = 128, .wait_us = 100'000, .mean_wait_us = 22'000};
  EXPECT_EQ(ChunkWithin(costs, question), 2);
  costs.Observe(0, 3, 41'000);
  EXPECT_EQ(ChunkWithin(costs, question), 3);
  costs.Observe(0, 4, 60'000);
  EXPECT_EQ(ChunkWithin(costs, question), 2);
}

TEST(ChunkWithin, LooksAheadToTheNextTokenOfThoseUnderWay) {
  const StepCosts costs = Linear(1, 10'000, 1000);
  const StepUnderWay decode = {.submitted_us = 0, .rows = 1, .samples = 1};
  // A step for prompts only delays the one that comes back by all it takes.
  const ChunkQuestion question = {
      .in_flight = absl::MakeConstSpan(&decode, 1), .chunk_max = 128, .wait_us = 50'000};
  EXPECT_NEAR(ChunkWithin(costs, question), 40, 1);
}

TEST(ChunkWithin, IsNothingBehindALongPromptThatIsUnderWayAlready) {
  const StepCosts costs = Linear(2, 10'000, 1000);
  const StepUnderWay prompt = {.submitted_us = 0, .rows = 200, .samples = 0};
  const ChunkQuestion question = {.in_flight = absl::MakeConstSpan(&prompt, 1),
                                  .decode_rows = 1,
                                  .chunk_max = 128,
                                  .wait_us = 50'000};
  EXPECT_EQ(ChunkWithin(costs, question), 0);
}

}  // namespace
}  // namespace strata
