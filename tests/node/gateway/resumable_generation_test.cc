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

class Heard final : public GenerationSink {
 public:
  void OnStarted(const std::vector<int32_t>& prompt) override { started.push_back(prompt); }
  void OnToken(const wire::SampledToken& token) override { tokens.push_back(token.token()); }
  void OnEnd(absl::Status status, FinishReason, const GenerationUsage& usage) override {
    ended.push_back(std::move(status));
    total = usage;
  }

  std::vector<std::vector<int32_t>> started;
  std::vector<int32_t> tokens;
  std::vector<absl::Status> ended;
  GenerationUsage total;
};

wire::SampledToken Token(int32_t id, float mu = 0) {
  wire::SampledToken token;
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

  const std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
  ResumableGeneration text_{Request(), heard_};
};

TEST_F(ResumableGenerationTest, TheNextSourceIsAskedForTheRest) {
  EXPECT_FALSE(text_.started());
  text_.OnStarted({1, 2, 3});
  text_.OnToken(Token(10));
  text_.OnToken(Token(11));
  EXPECT_TRUE(text_.started());
  const wire::GenerateRequest rest = text_.Rest();
  EXPECT_EQ(rest.model(), "one");
  EXPECT_THAT(rest.prompt(), IsEmpty());
  EXPECT_THAT(rest.tokens(), ElementsAre(1, 2, 3));
  EXPECT_THAT(rest.generated(), ElementsAre(10, 11));
  EXPECT_THAT(rest.mirostat_mu(), IsEmpty());
  EXPECT_EQ(rest.tokens_max(), 9u);
  EXPECT_EQ(rest.sampler().seed(), 7u);
}

TEST_F(ResumableGenerationTest, WhoHearsOfItHearsOneText) {
  text_.OnStarted({1, 2, 3});
  text_.OnToken(Token(10));
  text_.OnStarted({1, 2, 3});  // by the next source
  text_.OnToken(Token(11));
  GenerationUsage second;
  second.tokens = 1;
  text_.OnEnd(absl::OkStatus(), FinishReason::kLength, second);
  EXPECT_THAT(heard_->started, ElementsAre(ElementsAre(1, 2, 3)));
  EXPECT_THAT(heard_->tokens, ElementsAre(10, 11));
  EXPECT_THAT(heard_->ended, ElementsAre(absl::OkStatus()));
  EXPECT_EQ(heard_->total.prompt_tokens, 3u);
  EXPECT_EQ(heard_->total.tokens, 2u);
}

TEST_F(ResumableGenerationTest, ASourceMayGoBeforeItsFirstToken) {
  text_.OnStarted({1, 2, 3});
  EXPECT_THAT(text_.Rest().tokens(), ElementsAre(1, 2, 3));
  EXPECT_THAT(text_.Rest().generated(), IsEmpty());
}

TEST(ResumableGeneration, TheSamplersOwnStateGoesAlong) {
  wire::GenerateRequest request;
  request.mutable_sampler()->set_mirostat(2);
  ResumableGeneration text(request, std::make_shared<Heard>());
  text.OnStarted({1});
  text.OnToken(Token(10, 4.5f));
  text.OnToken(Token(11, 4.25f));
  EXPECT_THAT(text.Rest().mirostat_mu(), ElementsAre(4.5f, 4.25f));
}

const absl::Status kFull = WithRetryAfterMs(absl::ResourceExhaustedError("too many wait"), 1'000);

TEST(DecideRetry, ATextEndsWithWhatItsSourceSays) {
  EXPECT_EQ(DecideRetry({.status = absl::OkStatus(), .started = true}), RetryDecision::kFinish);
  EXPECT_EQ(DecideRetry({.status = kFull}), RetryDecision::kFinish);
  EXPECT_EQ(DecideRetry({.status = absl::InternalError("broken"), .started = true}),
            RetryDecision::kFinish);
}

TEST(DecideRetry, ATextGoesOnWhereItsSourceHasGone) {
  const absl::Status gone = absl::UnavailableError("the node does not answer");
  EXPECT_EQ(DecideRetry({.status = gone, .said_by_source = false, .started = true}),
            RetryDecision::kResume);
  EXPECT_EQ(DecideRetry({.status = gone, .said_by_source = false}), RetryDecision::kRetryLater);
  EXPECT_EQ(DecideRetry({.status = AsLeaderChanged(gone), .started = true}),
            RetryDecision::kResume);
  EXPECT_EQ(DecideRetry({.status = AsLeaderChanged(gone), .started = true, .wanted = false}),
            RetryDecision::kFinish);
}

// It had begun elsewhere, whoever writes it now.
TEST(DecideRetry, ATextThatHadBegunIsNotEndedByAFullQueue) {
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
