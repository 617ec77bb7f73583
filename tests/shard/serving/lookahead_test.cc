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

// A text's steps: each has the token that the one before sampled.
class LookaheadTest : public ::testing::Test {
 protected:
  // Runs a step that samples `next`; whether the step after it is worth to be begun with.
  bool Run(const wire::Step& step, int32_t next, bool* was_begun = nullptr) {
    const bool begun = ahead_.Observe(step) && begun_;
    begun_ = false;
    ahead_.Ran(step, begun, 0, 0);
    if (was_begun != nullptr) *was_begun = begun;
    return ahead_.Guess(step, Sampled({next}));
  }
  // As it is guessed, `n` steps.
  bool RunText(int32_t n) {
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
    ahead_.Begun(0);
    begun_ = true;
  }

  Lookahead ahead_;
  bool begun_ = false;
  int32_t token_ = 10, position_ = 3;
};

TEST_F(LookaheadTest, ATextThatDecodesIsGuessed) {
  EXPECT_FALSE(RunText(2));
  ASSERT_TRUE(RunText(1));
  const Stage::Batch batch = ahead_.batch();
  EXPECT_THAT(batch.tokens, ElementsAre(token_));
  EXPECT_THAT(batch.positions, ElementsAre(position_));
  EXPECT_THAT(batch.slots, ElementsAre(0));
  EXPECT_THAT(batch.output_rows, ElementsAre(0));
  bool was_begun = false;
  Run(Rows({token_}, position_, {0}), 1, &was_begun);
  EXPECT_TRUE(was_begun);
}

TEST_F(LookaheadTest, AnotherStepIsNotTheOneThatWasBegun) {
  const auto is_taken = [](const wire::Step& step) {
    Lookahead ahead;
    for (int32_t i = 0; i < 3; ++i) {
      const wire::Step decode = Rows({10 + i}, i, {0});
      ahead.Observe(decode);
      ahead.Guess(decode, Sampled({11 + i}));
    }
    return ahead.Observe(step);
  };
  EXPECT_TRUE(is_taken(Rows({13}, 3, {0})));
  EXPECT_FALSE(is_taken(Rows({14}, 3, {0})));
  EXPECT_FALSE(is_taken(Rows({13}, 4, {0})));
  EXPECT_FALSE(is_taken(Rows({13}, 3, {1})));
  EXPECT_FALSE(is_taken(Rows({13, 20}, 3, {0, 1})));
  wire::Step edits = Rows({13}, 3, {0});
  edits.add_edits();
  EXPECT_FALSE(is_taken(edits));
  wire::Step opens = Rows({13}, 3, {0});
  opens.add_opens();
  EXPECT_FALSE(is_taken(opens));
  wire::Step silent = Rows({13}, 3, {0});
  silent.clear_sample_rows();
  EXPECT_FALSE(is_taken(silent));
}

TEST_F(LookaheadTest, NothingIsGuessedBehindAnEndAPromptOrAnError) {
  ASSERT_TRUE(RunText(4));
  const wire::Step step = Rows({token_}, position_, {0});
  ahead_.Observe(step);
  wire::Result end = Sampled({3});
  end.mutable_tokens(0)->set_end_of_generation(true);
  EXPECT_FALSE(ahead_.Guess(step, end));
  wire::Result error = Sampled({3});
  error.add_errors();
  EXPECT_FALSE(ahead_.Guess(step, error));
  wire::Step prompt = Rows({1, 2}, 0, {0, 0});
  prompt.mutable_sample_rows()->Truncate(1);
  EXPECT_FALSE(ahead_.Guess(prompt, Sampled({3})));
  EXPECT_FALSE(ahead_.Guess(wire::Step(), wire::Result()));
}

TEST_F(LookaheadTest, AStepThatWasDoneBeforeItCameTookAsLongAsTheOneBefore) {
  const wire::Step step = Rows({1}, 0, {0});
  EXPECT_EQ(ahead_.Ran(step, false, 1000, 4400), 3400);
  ahead_.Begun(5000);
  EXPECT_EQ(ahead_.Ran(step, true, 7000, 8500), 3500);  // still under way: that is how long it took
  ahead_.Begun(9000);
  EXPECT_EQ(ahead_.Ran(step, true, 50'000, 50'010), 3500);  // the coordinator took its time
  ahead_.Begun(60'000);
  EXPECT_EQ(ahead_.Ran(step, true, 61'000, 61'010), 1010);
  const wire::Step two = Rows({1, 2}, 0, {0, 1});
  ahead_.Begun(70'000);
  EXPECT_EQ(ahead_.Ran(two, true, 75'000, 75'010), 5010);  // never timed with so many rows
}

TEST_F(LookaheadTest, AStageThatWouldNotBeginIsNotAskedEachTime) {
  const auto steps_until_asked = [&] {
    for (int32_t n = 1;; ++n) {
      const bool worth = Run(Rows({token_}, position_++, {0}), token_ + 1);
      ++token_;
      if (worth) return n;
    }
  };
  EXPECT_EQ(steps_until_asked(), 3);
  EXPECT_EQ(steps_until_asked(), 1);
  ahead_.Refused();
  EXPECT_EQ(steps_until_asked(), 64);
}

TEST_F(LookaheadTest, WhatIsInVainRestsLongerEachTime) {
  int32_t last = 0;
  for (int round = 0; round < 6; ++round) {
    int32_t steps = 0;
    while (!RunText(1)) ++steps;
    EXPECT_GE(steps, last);
    last = steps;
    RunOther();  // in vain
  }
  EXPECT_GT(last, 8);
  // One that comes true, and it is as in the beginning.
  RunText(200);
  RunOther();
  EXPECT_TRUE(RunText(3));
}

}  // namespace
}  // namespace strata
