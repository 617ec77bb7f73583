#include "coordinator/generation/generate.h"

#include <deque>
#include <thread>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A pipeline of two stages that answers each step at once: the token after position p is p + 100.
class FakePipeline final : public Pipeline {
 public:
  explicit FakePipeline(Listener* listener) : listener_(listener), stages_(2) {}

  absl::StatusOr<uint64_t> Submit(wire::Step step) override {
    if (refusals > 0) {
      --refusals;
      return absl::ResourceExhaustedError("no credit");
    }
    step.set_step_id(++last_id_);
    steps.push_back(step);
    if (break_at == last_id_) {
      listener_->OnBroken(absl::UnavailableError("node-2 is gone"));
      return last_id_;
    }
    if (silent) return last_id_;
    if (fail_at <= last_id_ && last_id_ < fail_at + fail_count) {
      wire::StepError error;
      error.set_step_id(last_id_);
      ToWire(absl::ResourceExhaustedError("the KV cache is full"), "stage 1",
             error.mutable_status());
      listener_->OnStepError(error);
      return last_id_;
    }
    wire::Result result;
    result.set_step_id(last_id_);
    for (uint32_t stage = 0; stage < 2; ++stage) {
      wire::StageTiming* timing = result.add_timings();
      timing->set_stage(stage);
      timing->set_compute_us(10);
    }
    for (uint32_t row : step.sample_rows()) {
      wire::SampledToken* token = result.add_tokens();
      token->set_position(step.positions(static_cast<int>(row)) + 1);
      token->set_token(token->position() + 100);
      token->set_end_of_generation(token->position() == end_at);
    }
    listener_->OnResult(result);
    return last_id_;
  }
  absl::Status Diagnose(const absl::Status& broken) override { return broken; }
  const std::vector<wire::StageInfo>& stages() const override { return stages_; }

  std::vector<wire::Step> steps;
  int refusals = 0;
  uint64_t fail_at = UINT64_MAX;
  uint64_t fail_count = 1;
  uint64_t break_at = UINT64_MAX;
  int32_t end_at = -1;
  bool silent = false;

 private:
  Listener* const listener_;
  std::vector<wire::StageInfo> stages_;
  uint64_t last_id_ = 0;
};

class GenerateTest : public ::testing::Test {
 protected:
  absl::StatusOr<GenerateResult> Run() {
    return generator.Run(&pipeline, request, [this](const wire::SampledToken& token) {
      seen.push_back(token.token());
      return seen.size() != stop_after;
    });
  }
  Generator generator;
  FakePipeline pipeline{&generator};
  GenerateRequest request{
      .prompt = {1, 2, 3, 4, 5}, .tokens_max = 3, .n_ctx = 16, .chunk_tokens = 128, .sampler = {}};
  std::vector<int32_t> seen;
  size_t stop_after = 0;
};

TEST_F(GenerateTest, FeedsEachTokenBackAtItsPosition) {
  auto result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(seen, ElementsAre(105, 106, 107));
  EXPECT_EQ(result->finish, FinishReason::kLength);
  ASSERT_EQ(pipeline.steps.size(), 4);  // prompt, two decodes, drop
  EXPECT_THAT(pipeline.steps[1].tokens(), ElementsAre(105));
  EXPECT_THAT(pipeline.steps[1].positions(), ElementsAre(5));
}

TEST_F(GenerateTest, CutsThePromptIntoChunksAndSamplesTheLastRowOnly) {
  request.chunk_tokens = 2;
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(pipeline.steps[0].positions(), ElementsAre(0, 1));
  EXPECT_THAT(pipeline.steps[1].positions(), ElementsAre(2, 3));
  EXPECT_THAT(pipeline.steps[2].positions(), ElementsAre(4));
  EXPECT_THAT(pipeline.steps[0].sample_rows(), ElementsAre());
  EXPECT_THAT(pipeline.steps[2].sample_rows(), ElementsAre(0));
  EXPECT_EQ(pipeline.steps[0].opens_size(), 1);
  EXPECT_THAT(pipeline.steps[0].opens(0).prompt(), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(pipeline.steps[1].opens_size(), 0);
}

TEST_F(GenerateTest, LeavesItsSlotEmpty) {
  ASSERT_TRUE(Run().ok());
  ASSERT_EQ(pipeline.steps.back().edits_size(), 1);
  EXPECT_EQ(pipeline.steps.back().edits(0).kind(), wire::KvEdit::DROP);
}

TEST_F(GenerateTest, EndsAtTheEndOfGenerationWithoutShowingItsToken) {
  pipeline.end_at = 6;
  auto result = Run();
  EXPECT_EQ(result->finish, FinishReason::kEndOfGeneration);
  EXPECT_THAT(seen, ElementsAre(105));
}

TEST_F(GenerateTest, FillsTheContextAndNoMore) {
  request.n_ctx = 7;
  request.tokens_max = 100;
  auto result = Run();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->tokens.size(), 2);  // positions 5 and 6
  for (const wire::Step& step : pipeline.steps) {
    for (int32_t position : step.positions()) EXPECT_LT(position, 7);
  }
}

TEST_F(GenerateTest, RefusesAPromptWithNoRoomBehindIt) {
  request.n_ctx = 5;
  EXPECT_THAT(Run(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("5 tokens")));
  request.prompt.clear();
  EXPECT_THAT(Run(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("empty")));
  EXPECT_TRUE(pipeline.steps.empty());
}

TEST_F(GenerateTest, WaitsForRoomInTheFirstStage) {
  pipeline.refusals = 3;
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(seen, ElementsAre(105, 106, 107));
}

TEST_F(GenerateTest, ReportsAFailedStepAndCanRunAgain) {
  pipeline.fail_at = 2;
  EXPECT_THAT(Run(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("stage 1")));
  EXPECT_EQ(pipeline.steps.back().edits(0).kind(), wire::KvEdit::DROP);
  seen.clear();
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(seen, ElementsAre(105, 106, 107));
}

TEST_F(GenerateTest, WaitsForEveryStepInFlightAfterSeveralFailed) {
  request.chunk_tokens = 1;
  pipeline.fail_at = 2;
  pipeline.fail_count = 4;
  EXPECT_THAT(Run(), StatusIs(absl::StatusCode::kResourceExhausted));
  seen.clear();
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(seen, ElementsAre(105, 106, 107));
}

TEST_F(GenerateTest, EndsWithTheReasonWhenThePipelineBreaks) {
  pipeline.break_at = 2;
  EXPECT_THAT(Run(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node-2")));
}

TEST_F(GenerateTest, StopsWhenTheCallerWantsNoMoreTokens) {
  stop_after = 2;
  auto result = Run();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->finish, FinishReason::kCancelled);
  EXPECT_EQ(result->tokens.size(), 2);
}

TEST_F(GenerateTest, IsCancelledFromAnotherThread) {
  request.tokens_max = 8;
  // The run can only end through the cancel: it comes while on_token blocks the run.
  auto result = generator.Run(&pipeline, request, [this](const wire::SampledToken& token) {
    if (token.position() == 6) std::thread([this] { generator.Cancel(); }).join();
    return true;
  });
  ASSERT_TRUE(result.ok());
  EXPECT_LE(result->tokens.size(), 8);
  // The next run is a new one.
  ASSERT_TRUE(Run().ok());
}

TEST_F(GenerateTest, AddsUpTheTimesOfEachStage) {
  request.chunk_tokens = 2;
  auto result = Run();
  ASSERT_EQ(result->prompt_stages.size(), 2);
  EXPECT_EQ(result->prompt_stages[1].steps, 3);
  EXPECT_EQ(result->prompt_stages[1].compute_us, 30);
  EXPECT_EQ(result->decode_stages[0].steps, 2);
}

}  // namespace
}  // namespace strata
