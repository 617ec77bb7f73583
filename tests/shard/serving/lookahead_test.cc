#include "shard/serving/lookahead.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;

wire::Step Rows(const std::vector<int32_t>& tokens, int32_t position,
                const std::vector<int32_t>& slots) {
  wire::Step step;
  for (size_t i = 0; i < tokens.size(); ++i) {
    step.add_tokens(tokens[i]);
    step.add_positions(position);
    step.add_slots(slots[i]);
    step.add_sample_rows(static_cast<uint32_t>(i));
  }
  return step;
}

wire::Result Sampled(const std::vector<int32_t>& tokens) {
  wire::Result result;
  for (const int32_t token : tokens) result.add_tokens()->set_token(token);
  return result;
}

// The steps of one sequence: each has the token that the one before sampled.
class LookaheadTest : public ::testing::Test {
 protected:
  // Runs a step that samples `next`; returns whether beginning the step after it is worthwhile.
  bool Run(const wire::Step& step, int32_t next, bool* was_begun = nullptr) {
    const bool begun = lookahead_.Observe(step) && begun_;
    begun_ = false;
    lookahead_.RecordStep(step, begun, 0, 0);
    if (was_begun != nullptr) *was_begun = begun;
    return lookahead_.Guess(step, Sampled({next}));
  }
  // Runs `n` steps as predicted.
  bool RunDecodes(int32_t n) {
    bool worth = false;
    for (int32_t i = 0; i < n; ++i) {
      worth = Run(Rows({token_}, position_++, {0}), token_ + 1);
      if (worth) Begin();
      ++token_;
    }
    return worth;
  }
  bool RunOther() { return Run(Rows({5}, position_ + 7, {1}), 6); }

  void Begin() {
    lookahead_.OnBegun(0);
    begun_ = true;
  }

  Lookahead lookahead_;
  bool begun_ = false;
  int32_t token_ = 10, position_ = 3;
};

TEST_F(LookaheadTest, PredictsADecodingSequence) {
  EXPECT_FALSE(RunDecodes(2));
  ASSERT_TRUE(RunDecodes(1));
  const Stage::Batch batch = lookahead_.batch();
  EXPECT_THAT(batch.tokens, ElementsAre(token_));
  EXPECT_THAT(batch.positions, ElementsAre(position_));
  EXPECT_THAT(batch.slots, ElementsAre(0));
  EXPECT_THAT(batch.output_rows, ElementsAre(0));
  bool was_begun = false;
  Run(Rows({token_}, position_, {0}), 1, &was_begun);
  EXPECT_TRUE(was_begun);
}

TEST_F(LookaheadTest, ADifferentStepIsNotThePredictedOne) {
  const auto matches = [](const wire::Step& step) {
    Lookahead lookahead;
    for (int32_t i = 0; i < 3; ++i) {
      const wire::Step decode = Rows({10 + i}, i, {0});
      lookahead.Observe(decode);
      lookahead.Guess(decode, Sampled({11 + i}));
    }
    return lookahead.Observe(step);
  };
  EXPECT_TRUE(matches(Rows({13}, 3, {0})));
  EXPECT_FALSE(matches(Rows({14}, 3, {0})));
  EXPECT_FALSE(matches(Rows({13}, 4, {0})));
  EXPECT_FALSE(matches(Rows({13}, 3, {1})));
  EXPECT_FALSE(matches(Rows({13, 20}, 3, {0, 1})));
  wire::Step edits = Rows({13}, 3, {0});
  edits.add_edits();
  EXPECT_FALSE(matches(edits));
  wire::Step opens = Rows({13}, 3, {0});
  opens.add_opens();
  EXPECT_FALSE(matches(opens));
  wire::Step silent = Rows({13}, 3, {0});
  silent.clear_sample_rows();
  EXPECT_FALSE(matches(silent));
}

TEST_F(LookaheadTest, PredictsNothingAfterAnEndAPromptOrAnError) {
  ASSERT_TRUE(RunDecodes(4));
  const wire::Step step = Rows({token_}, position_, {0});
  lookahead_.Observe(step);
  wire::Result end = Sampled({3});
  end.mutable_tokens(0)->set_end_of_generation(true);
  EXPECT_FALSE(lookahead_.Guess(step, end));
  wire::Result error = Sampled({3});
  error.add_errors();
  EXPECT_FALSE(lookahead_.Guess(step, error));
  wire::Step prompt = Rows({1, 2}, 0, {0, 0});
  prompt.mutable_sample_rows()->Truncate(1);
  EXPECT_FALSE(lookahead_.Guess(prompt, Sampled({3})));
  EXPECT_FALSE(lookahead_.Guess(wire::Step(), wire::Result()));
}

TEST_F(LookaheadTest, AStepDoneBeforeItCameCountsAsLongAsTheLast) {
  const wire::Step step = Rows({1}, 0, {0});
  EXPECT_EQ(lookahead_.RecordStep(step, false, 1000, 4400), 3400);
  lookahead_.OnBegun(5000);
  EXPECT_EQ(lookahead_.RecordStep(step, true, 7000, 8500), 3500);  // still in flight: its real time
  lookahead_.OnBegun(9000);
  // The coordinator took its time.
  EXPECT_EQ(lookahead_.RecordStep(step, true, 50'000, 50'010), 3500);
  lookahead_.OnBegun(60'000);
  EXPECT_EQ(lookahead_.RecordStep(step, true, 61'000, 61'010), 1010);
  const wire::Step two = Rows({1, 2}, 0, {0, 1});
  lookahead_.OnBegun(70'000);
  // A step of two rows was never timed.
  EXPECT_EQ(lookahead_.RecordStep(two, true, 75'000, 75'010), 5010);
}

TEST_F(LookaheadTest, ARefusalPausesLookahead) {
  const auto steps_until_worthwhile = [&] {
    for (int32_t n = 1;; ++n) {
      const bool worth = Run(Rows({token_}, position_++, {0}), token_ + 1);
      ++token_;
      if (worth) return n;
    }
  };
  EXPECT_EQ(steps_until_worthwhile(), 3);
  EXPECT_EQ(steps_until_worthwhile(), 1);
  lookahead_.OnRefused();
  EXPECT_EQ(steps_until_worthwhile(), 64);
}

TEST_F(LookaheadTest, PausesLongerAfterEachWrongPrediction) {
  int32_t last = 0;
  for (int round = 0; round < 6; ++round) {
    int32_t steps = 0;
    while (!RunDecodes(1)) ++steps;
    EXPECT_GE(steps, last);
    last = steps;
    RunOther();  // a wrong prediction
  }
  EXPECT_GT(last, 8);
  // Right predictions reset the pause.
  RunDecodes(200);
  RunOther();
  EXPECT_TRUE(RunDecodes(3));
}

}  // namespace
}  // namespace strata
