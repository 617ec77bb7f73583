#include "node/gateway/resumable_generation.h"

#include <memory>
#include <string>
#include <vector>

#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RecordingSink final : public GenerationListener {
 public:
  void OnStarted(const std::vector<int32_t>& prompt) override { started.push_back(prompt); }
  void OnProgress(const PromptProgress& progress) override { done.push_back(progress.done_tokens); }
  void OnToken(const wire::SampledToken& token) override { tokens.push_back(token.token()); }
  void OnEnd(absl::Status status, FinishReason, const GenerationUsage& usage) override {
    ended.push_back(std::move(status));
    total = usage;
  }

  std::vector<std::vector<int32_t>> started;
  std::vector<uint32_t> done;
  std::vector<int32_t> tokens;
  std::vector<absl::Status> ended;
  GenerationUsage total;
};

wire::SampledToken Token(int32_t position, int32_t id, float mu = 0) {
  wire::SampledToken token;
  token.set_position(position);
  token.set_token(id);
  token.set_mirostat_mu(mu);
  return token;
}

class ResumableGenerationTest : public ::testing::Test {
 protected:
  static wire::GenerateRequest Request() {
    wire::GenerateRequest request;
    request.set_model("one");
    request.set_prompt("Once upon");
    request.set_tokens_max(9);
    request.mutable_sampler()->set_seed(7);
    return request;
  }

  const std::shared_ptr<RecordingSink> recorded_ = std::make_shared<RecordingSink>();
  ResumableGeneration generation_{Request(), recorded_};
};

TEST_F(ResumableGenerationTest, ASecondSourceReportsNoProgressThatTheClientKnows) {
  generation_.OnStarted({1, 2, 3, 4});
  for (const uint32_t done : {0, 2, 0, 1, 3}) {
    generation_.OnProgress({.prompt_tokens = 4, .done_tokens = done});
  }
  EXPECT_THAT(recorded_->done, ElementsAre(0, 2, 3));
  generation_.OnToken(Token(4, 10));
  generation_.OnProgress({.prompt_tokens = 4, .done_tokens = 4});
  EXPECT_THAT(recorded_->done, ElementsAre(0, 2, 3));
}

TEST_F(ResumableGenerationTest, RestNamesThePromptAndTheTokensSoFar) {
  EXPECT_FALSE(generation_.started());
  generation_.OnStarted({1, 2, 3});
  generation_.OnToken(Token(3, 10));
  generation_.OnToken(Token(4, 11));
  EXPECT_TRUE(generation_.started());
  const wire::GenerateRequest rest = generation_.Rest();
  EXPECT_EQ(rest.model(), "one");
  EXPECT_THAT(rest.prompt(), IsEmpty());
  EXPECT_THAT(rest.tokens(), ElementsAre(1, 2, 3));
  EXPECT_THAT(rest.generated(), ElementsAre(10, 11));
  EXPECT_THAT(rest.mirostat_mu(), IsEmpty());
  EXPECT_EQ(rest.tokens_max(), 9u);
  EXPECT_EQ(rest.sampler().seed(), 7u);
}

TEST_F(ResumableGenerationTest, TheListenerReceivesOneGeneration) {
  generation_.OnStarted({1, 2, 3});
  generation_.OnToken(Token(3, 10));
  generation_.OnStarted({1, 2, 3});  // by the next source
  generation_.OnToken(Token(4, 11));
  GenerationUsage second;
  second.tokens = 1;
  generation_.OnEnd(absl::OkStatus(), FinishReason::kLength, second);
  EXPECT_THAT(recorded_->started, ElementsAre(ElementsAre(1, 2, 3)));
  EXPECT_THAT(recorded_->tokens, ElementsAre(10, 11));
  EXPECT_THAT(recorded_->ended, ElementsAre(absl::OkStatus()));
  EXPECT_EQ(recorded_->total.prompt_tokens, 3u);
  EXPECT_EQ(recorded_->total.tokens, 2u);
}

TEST_F(ResumableGenerationTest, ATokenThatComesTwiceIsForwardedOnce) {
  generation_.OnStarted({1, 2, 3});
  EXPECT_EQ(generation_.next_position(), 3);
  for (const int32_t position : {3, 3, 4, 3}) generation_.OnToken(Token(position, 10 + position));
  EXPECT_EQ(generation_.next_position(), 5);
  EXPECT_THAT(recorded_->tokens, ElementsAre(13, 14));
  EXPECT_THAT(generation_.Rest().generated(), ElementsAre(13, 14));
}

TEST_F(ResumableGenerationTest, ASourceMayGoBeforeItsFirstToken) {
  generation_.OnStarted({1, 2, 3});
  EXPECT_THAT(generation_.Rest().tokens(), ElementsAre(1, 2, 3));
  EXPECT_THAT(generation_.Rest().generated(), IsEmpty());
}

TEST(ResumableGeneration, TheSamplersOwnStateGoesAlong) {
  wire::GenerateRequest request;
  request.mutable_sampler()->set_mirostat(2);
  ResumableGeneration generation(request, std::make_shared<RecordingSink>());
  generation.OnStarted({1});
  generation.OnToken(Token(1, 10, 4.5f));
  generation.OnToken(Token(2, 11, 4.25f));
  EXPECT_THAT(generation.Rest().mirostat_mu(), ElementsAre(4.5f, 4.25f));
}

const absl::Status kFull = WithRetryAfterMs(absl::ResourceExhaustedError("too many wait"), 1'000);

TEST(DecideRetry, ARequestEndsWithItsSourcesStatus) {
  EXPECT_EQ(DecideRetry({.status = absl::OkStatus(), .started = true}), RetryDecision::kFinish);
  EXPECT_EQ(DecideRetry({.status = kFull}), RetryDecision::kFinish);
  EXPECT_EQ(DecideRetry({.status = absl::InternalError("broken"), .started = true}),
            RetryDecision::kFinish);
}

TEST(DecideRetry, ARequestResumesWhenItsSourceHasGone) {
  const absl::Status gone = absl::UnavailableError("the node does not answer");
  EXPECT_EQ(DecideRetry({.status = gone, .from_source = false, .started = true}),
            RetryDecision::kResume);
  EXPECT_EQ(DecideRetry({.status = gone, .from_source = false}), RetryDecision::kRetryLater);
  EXPECT_EQ(DecideRetry({.status = AsLeaderChanged(gone), .started = true}),
            RetryDecision::kResume);
  EXPECT_EQ(DecideRetry({.status = AsLeaderChanged(gone), .started = true, .wanted = false}),
            RetryDecision::kFinish);
}

// The request had begun elsewhere, whichever node runs it now.
TEST(DecideRetry, AResumedRequestIsNotEndedByAFullQueue) {
  EXPECT_EQ(DecideRetry({.status = kFull, .resumed = true}), RetryDecision::kRetry);
  EXPECT_EQ(DecideRetry({.status = absl::NotFoundError("no model"), .resumed = true}),
            RetryDecision::kRetry);
  EXPECT_EQ(DecideRetry({.status = kFull, .started = true, .resumed = true}),
            RetryDecision::kFinish);
  const absl::Status no_room = absl::ResourceExhaustedError("10 MiB are needed");
  EXPECT_EQ(DecideRetry({.status = no_room, .resumed = true}), RetryDecision::kFinish);
}

}  // namespace
}  // namespace strata
