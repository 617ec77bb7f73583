// The errors of a prompt's log-probabilities; serving_outputs_test has their values.
#include "shard/sampling/prompt_scores.h"

#include <limits>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/sampling/logprobs.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;

TEST(PromptScores, AreNotManyMoreThanAResultHolds) {
  const std::vector<int32_t> prompt(kPromptScoresMax / 4);
  EXPECT_THAT(PromptScores(prompt, 3, nullptr).Check(), IsOk());
  EXPECT_THAT(PromptScores(prompt, 4, nullptr).Check(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 alternatives")));
}

TEST(PromptScores, LeaveNoRowOut) {
  const std::vector<int32_t> prompt = {1, 2, 3};
  PromptScores scores(prompt, 0, nullptr);
  EXPECT_THAT(scores.Add(1, std::vector<float>{0, 0}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("where 0 follows")));
  wire::SampledToken token;
  EXPECT_THAT(scores.MoveTo(&token), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(PromptScores, OfLogitsThatAreNoNumbersAreInternal) {
  const std::vector<int32_t> prompt = {1, 2};
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    PromptScores scores(prompt, 0, nullptr);
    EXPECT_THAT(scores.Add(0, std::vector<float>{0, bad}), StatusIs(absl::StatusCode::kInternal));
  }
}

TEST(Logprobs, AreOfTheWholeDistribution) {
  const std::vector<float> logits = {0, 1, -std::numeric_limits<float>::infinity(), 1};
  const Logprobs logprobs(logits);
  EXPECT_THAT(logprobs.Of(0), FloatNear(-1.862f, 1e-3f));
  EXPECT_THAT(logprobs.Of(1), FloatNear(-0.862f, 1e-3f));
  EXPECT_EQ(logprobs.Of(2), std::numeric_limits<float>::lowest());
  EXPECT_THAT(logprobs.Likeliest(2), ElementsAre(1, 3));
  EXPECT_THAT(logprobs.Likeliest(9), ElementsAre(1, 3, 0, 2));
  EXPECT_THAT(logprobs.Likeliest(0), ElementsAre());
}

}  // namespace
}  // namespace strata
