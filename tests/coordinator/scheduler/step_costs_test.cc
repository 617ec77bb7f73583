#include "coordinator/scheduler/step_costs.h"

#include <random>

#include "gtest/gtest.h"

namespace strata {
namespace {

// Each stage takes `step_us` and `row_us` for each row.
StepCosts Linear(uint32_t n_stages, int64_t step_us, int64_t row_us) {
  StepCosts costs(n_stages);
  for (uint32_t stage = 0; stage < n_stages; ++stage) {
    for (uint32_t rows = 1; rows <= 256; rows *= 2)
      costs.Observe(stage, {rows}, step_us + row_us * rows);
  }
  return costs;
}

TEST(StepCosts, KnowsNothingAtFirst) {
  StepCosts costs(2);
  EXPECT_FALSE(costs.known());
  EXPECT_EQ(costs.Us(0, {10}), 0);
  costs.Observe(0, {1}, 100);
  EXPECT_FALSE(costs.known());
  costs.Observe(1, {10}, 100);
  EXPECT_TRUE(costs.known());
}

TEST(StepCosts, LiesOnALineThroughTheObservations) {
  const StepCosts costs = Linear(1, 1000, 10);
  for (uint32_t rows : {1u, 2u, 7u, 60u, 200u, 300u, 1000u}) {
    EXPECT_NEAR(costs.Us(0, {rows}), 1000 + 10 * rows, 50 + 0.5 * rows) << rows;
  }
}

TEST(StepCosts, ExpectsRowsToCostWhatSingleOnesDoWhileNoOthersAreObserved) {
  StepCosts costs(1);
  costs.Observe(0, {1}, 1000);
  EXPECT_EQ(costs.Us(0, {1}), 1000);
  EXPECT_EQ(costs.Us(0, {7}), 7000);
}

TEST(StepCosts, ExpectsAStepToCostSomethingBesideItsRows) {
  StepCosts costs(1);
  for (int i = 0; i < 10; ++i) costs.Observe(0, {10}, 1000);
  EXPECT_NEAR(costs.Us(0, {10}), 1000, 1);
  EXPECT_GT(costs.Us(0, {5}), 550);
  EXPECT_LT(costs.Us(0, {5}), 950);
  EXPECT_GT(costs.Us(0, {20}), 1100);
  EXPECT_LT(costs.Us(0, {20}), 1900);
}

TEST(StepCosts, KnowsThatASecondRowMayCostAsMuchAsTheFirst) {
  StepCosts costs(1);
  for (int i = 0; i < 20; ++i) {
    costs.Observe(0, {1}, 20'000);
    for (uint32_t rows : {2u, 4u, 8u}) costs.Observe(0, {rows}, 40'000 + 4000 * rows);
  }
  EXPECT_NEAR(costs.Us(0, {1}), 20'000, 1);
  for (uint32_t rows : {2u, 5u, 10u}) {
    EXPECT_NEAR(costs.Us(0, {rows}), 40'000 + 4000 * rows, 4000) << rows;
  }
}

TEST(StepCosts, NeverFallsWithTheRows) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    std::minstd_rand random(seed);
    StepCosts costs(1);
    for (int i = 0; i < 30; ++i) {
      const auto rows = static_cast<uint32_t>(1 + random() % (i % 3 == 0 ? 3 : 40));
      costs.Observe(0, {rows}, static_cast<int64_t>(random() % 10'000));
      double before = 0;
      for (uint32_t n = 1; n < 100; ++n) {
        ASSERT_GE(costs.Us(0, {n}), before) << "seed " << seed << ", " << n << " rows";
        before = costs.Us(0, {n});
      }
    }
  }
}

TEST(StepCosts, CellsHaveTheirCostWhereTheirNumberVaries) {
  StepCosts costs(1);
  // A prompt of 4000 in chunks of 100, between tokens of a sequence of 1000.
  for (uint32_t begin = 0; begin < 4000; begin += 100) {
    const StepSize chunk = StepSize::Of(begin, 100);
    costs.Observe(0, chunk, 10'000 + static_cast<int64_t>(chunk.cells / 10));
    costs.Observe(0, StepSize::Of(1000, 1), 1000);
  }
  for (const uint32_t begin : {2500u, 4000u, 6000u}) {
    const StepSize chunk = StepSize::Of(begin, 100);
    const double us = 10'000 + static_cast<double>(chunk.cells) / 10;
    EXPECT_NEAR(costs.Us(0, chunk), us, (begin == 4000 ? 0.1 : 0.2) * us) << begin;
  }
  EXPECT_NEAR(costs.Us(0, StepSize::Of(1000, 1)), 1000, 1);
}

TEST(StepCosts, CellsCostNothingWhereTheirNumberIsTheSame) {
  StepCosts costs(1);
  for (int i = 0; i < 20; ++i) costs.Observe(0, {8, 8000}, 5000);
  EXPECT_NEAR(costs.Us(0, {8, 80'000}), 5000, 1);
}

TEST(StepCosts, NeverFallsWithTheCells) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    std::minstd_rand random(seed);
    StepCosts costs(1);
    for (int i = 0; i < 30; ++i) {
      const auto rows = static_cast<uint32_t>(1 + random() % 20);
      costs.Observe(0, {rows, random() % 10'000}, static_cast<int64_t>(random() % 10'000));
      double before = 0;
      for (uint64_t cells = 0; cells < 20'000; cells += 500) {
        ASSERT_GE(costs.Us(0, {5, cells}), before) << "seed " << seed << ", " << cells << " cells";
        before = costs.Us(0, {5, cells});
      }
    }
  }
}

TEST(StepCosts, ASizeCountsThePositionsUpToEachRow) {
  EXPECT_EQ(StepSize::Of(0, 1).cells, 1);
  EXPECT_EQ(StepSize::Of(10, 3).cells, 11 + 12 + 13);
  const StepSize both = StepSize::Of(0, 2) + StepSize::Of(5, 1);
  EXPECT_EQ(both.rows, 3);
  EXPECT_EQ(both.cells, 1 + 2 + 6);
}

TEST(StepCosts, ADelayedStepCountsForLittle) {
  for (uint32_t rows : {1u, 4u}) {
    StepCosts costs(1);
    for (int i = 0; i < 10; ++i) costs.Observe(0, {rows}, 1000);
    costs.Observe(0, {rows}, 1'000'000);
    EXPECT_LE(costs.Us(0, {rows}), 1100);
    for (int i = 0; i < 30; ++i) costs.Observe(0, {rows}, 5000);  // it is slower now
    EXPECT_GE(costs.Us(0, {rows}), 4500);
  }
}

TEST(StepCosts, AFirstStepThatWasDelayedIsForgotten) {
  StepCosts costs(1);
  costs.Observe(0, {4}, 1'000'000);
  costs.Observe(0, {8}, 2000);
  EXPECT_LE(costs.Us(0, {4}), 2000);
}

TEST(StepCosts, OneSlowStepMakesNoOthersOfItsSizeLookSlow) {
  StepCosts costs(1);
  for (int i = 0; i < 20; ++i) costs.Observe(0, {4}, 20'000);
  costs.Observe(0, {6}, 50'000);
  EXPECT_LE(costs.Us(0, {6}), 32'000);
  for (int i = 0; i < 20; ++i) costs.Observe(0, {4}, 20'000);
  EXPECT_LE(costs.Us(0, {6}), 28'000);
}

TEST(StepCosts, TriesWhatWasSlowLongAgo) {
  StepCosts costs(1);
  costs.Observe(0, {1}, 1000);
  for (int i = 0; i < 5; ++i) costs.Observe(0, {3}, 10'000);
  for (int i = 0; i < 10; ++i) costs.Observe(0, {1}, 1000);
  EXPECT_GE(costs.Us(0, {2}), 5000);
  for (int i = 0; i < 10; ++i) costs.Observe(0, {1}, 1000);
  EXPECT_NEAR(costs.Us(0, {2}), 2000, 1);
  costs.Observe(0, {3}, 10'000);
  EXPECT_GE(costs.Us(0, {2}), 5000);
}

TEST(StepCosts, IgnoresInvalidObservations) {
  StepCosts costs(1);
  costs.Observe(7, {1}, 10);
  costs.Observe(0, {0}, 10);
  costs.Observe(0, {1}, -10);
  EXPECT_FALSE(costs.known());
  costs.Observe(0, {UINT32_MAX}, 10);
  EXPECT_TRUE(costs.known());
}

TEST(ChunkWithin, OfOneStageFillsTheWait) {
  const StepCosts costs = Linear(1, 10'000, 1000);
  EXPECT_NEAR(ChunkWithin(costs, {.decodes = {1}, .chunk_max = 128, .wait_us = 50'000}), 50, 1);
  EXPECT_EQ(ChunkWithin(costs, {.decodes = {1}, .chunk_max = 20, .wait_us = 50'000}), 20);
  EXPECT_EQ(ChunkWithin(costs, {.decodes = {1}, .chunk_max = 128, .wait_us = 500}), 0);
}

TEST(ChunkWithin, IsPaidInEveryStage) {
  const StepCosts costs = Linear(4, 10'000, 1000);
  EXPECT_NEAR(ChunkWithin(costs, {.decodes = {1}, .chunk_max = 128, .wait_us = 40'000}), 10, 1);
}

TEST(ChunkWithin, OnAverageEachStepOfARoundTakesItsShareOfTheWait) {
  const StepCosts costs = Linear(2, 10'000, 1000);
  const PendingStep decode = {.submitted_us = 0, .size = {1}, .next = {1}};
  // Alone it takes 22 ms; with steps of (22 + 40) / 2 ms a token comes 40 ms later.
  EXPECT_NEAR(ChunkWithin(costs, {.now_us = 11'000,
                                  .in_flight = absl::MakeConstSpan(&decode, 1),
                                  .chunk_max = 128,
                                  .wait_us = 100'000,
                                  .mean_wait_us = 40'000}),
              21, 3);
}

TEST(ChunkWithin, LooksAheadToTheNextTokenOfStepsInFlight) {
  const StepCosts costs = Linear(1, 10'000, 1000);
  const PendingStep decode = {.submitted_us = 0, .size = {1}, .next = {1}};
  // A step for prompts only delays the one that comes back by all it takes.
  const ChunkQuery query = {
      .in_flight = absl::MakeConstSpan(&decode, 1), .chunk_max = 128, .wait_us = 50'000};
  EXPECT_NEAR(ChunkWithin(costs, query), 40, 1);
}

TEST(ChunkWithin, IsNothingBehindALongPromptThatIsInFlightAlready) {
  const StepCosts costs = Linear(2, 10'000, 1000);
  const PendingStep prompt = {.submitted_us = 0, .size = {200}};
  const ChunkQuery query = {.in_flight = absl::MakeConstSpan(&prompt, 1),
                            .decodes = {1},
                            .chunk_max = 128,
                            .wait_us = 50'000};
  EXPECT_EQ(ChunkWithin(costs, query), 0);
}

// A GPU's stage takes little longer for more rows, a CPU's takes its time for each row.
constexpr ThroughputQuery kPrompts = {
    .rows_left = 2000, .chunk_min = 128, .chunk_max = 512, .stage_us_max = 100'000};

TEST(ChunkForThroughput, IsTheLeastWhileNothingIsKnown) {
  EXPECT_EQ(ChunkForThroughput(StepCosts(1), kPrompts), 128);
}

TEST(ChunkForThroughput, IsLargeWhereStepsCostMoreThanTheirRows) {
  EXPECT_EQ(ChunkForThroughput(Linear(1, 3400, 16), kPrompts), 512);
  EXPECT_EQ(ChunkForThroughput(Linear(2, 3400, 16), kPrompts), 512);
  // Only 128 rows were observed: more are tried.
  StepCosts costs(1);
  for (int i = 0; i < 5; ++i) costs.Observe(0, {128}, 17'000);
  EXPECT_EQ(ChunkForThroughput(costs, kPrompts), 512);
}

TEST(ChunkForThroughput, LeavesNoStageWithoutWork) {
  // Four chunks of 512 through four stages are seven times what one takes, sixteen of 128 nineteen.
  EXPECT_EQ(ChunkForThroughput(Linear(4, 30, 100), kPrompts), 128);
  ThroughputQuery query = kPrompts;
  query.rows_left = 300;
  EXPECT_EQ(ChunkForThroughput(Linear(2, 3400, 100), query), 128);
  EXPECT_EQ(ChunkForThroughput(Linear(2, 3400, 40), query), 512);
}

TEST(ChunkForThroughput, DoesNotDelayNewRequests) {
  EXPECT_EQ(ChunkForThroughput(Linear(1, 10'000, 1000), kPrompts), 128);
  EXPECT_EQ(ChunkForThroughput(Linear(1, 10'000, 300), kPrompts), 256);
  ThroughputQuery query = kPrompts;
  query.stage_us_max = 0;
  EXPECT_EQ(ChunkForThroughput(Linear(1, 100, 1), query), 128);
}

TEST(ChunkForThroughput, IsNoLargerThanWhatIsLeft) {
  ThroughputQuery query = kPrompts;
  query.rows_left = 100;
  EXPECT_EQ(ChunkForThroughput(Linear(1, 3400, 16), query), 128);
  query.rows_left = 200;
  EXPECT_EQ(ChunkForThroughput(Linear(1, 3400, 16), query), 256);
}

}  // namespace
}  // namespace strata
