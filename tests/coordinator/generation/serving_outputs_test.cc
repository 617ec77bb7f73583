// Embeddings through real stages of small random models, beside generations, compared with
// libllama's own pooling over the whole model.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "llama.h"
#include "tests/coordinator/generation/serving_support.h"
#include "tests/support/whole_model.h"

namespace strata {
namespace {

constexpr float kTolerance = 1e-5f;

struct Case {
  std::string model;
  std::vector<uint32_t> cuts;
};

class EmbeddingListener final : public GenerationListener {
 public:
  void OnToken(const wire::SampledToken& token) override {
    embeddings_.emplace_back(token.embedding().begin(), token.embedding().end());
  }
  void OnEnd(absl::Status status, FinishReason, const GenerationUsage&) override {
    end_ = std::move(status);
    ended_.Notify();
  }
  // The only one.
  std::vector<float> Wait() {
    EXPECT_TRUE(ended_.WaitForNotificationWithTimeout(absl::Seconds(60)));
    EXPECT_EQ(end_, absl::OkStatus());
    EXPECT_EQ(embeddings_.size(), 1);
    return embeddings_.empty() ? std::vector<float>() : embeddings_[0];
  }

 private:
  absl::Notification ended_;
  absl::Status end_;
  std::vector<std::vector<float>> embeddings_;
};

class ServingOutputsTest : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int kRequests = 8;
  static GenerationRequest Request(int i, wire::Pooling pooling) {
    GenerationRequest request = MakeRequest(i, 20 + 5 * (i % 7), 1);
    request.sampler = {};
    request.sampler.set_pooling(pooling);
    return request;
  }
  static std::vector<float> OfWhole(const std::vector<int32_t>& prompt, wire::Pooling pooling) {
    const auto type = pooling == wire::POOLING_MEAN  ? LLAMA_POOLING_TYPE_MEAN
                      : pooling == wire::POOLING_CLS ? LLAMA_POOLING_TYPE_CLS
                                                     : LLAMA_POOLING_TYPE_LAST;
    const auto embedding = testing::EmbeddingOf(ModelPath(GetParam().model), prompt, type);
    EXPECT_TRUE(embedding.ok()) << embedding.status();
    return embedding.value_or(std::vector<float>());
  }
  static void ExpectNear(const std::vector<float>& got, const std::vector<float>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], kTolerance) << i;
  }
};

TEST_P(ServingOutputsTest, AreLibllamasOwnBesideGenerations) {
  for (const wire::Pooling pooling : {wire::POOLING_MEAN, wire::POOLING_CLS, wire::POOLING_LAST}) {
    SCOPED_TRACE(wire::Pooling_Name(pooling));
    Serving serving(GetParam().model, GetParam().cuts);
    std::vector<std::shared_ptr<Listener>> texts;
    std::vector<std::shared_ptr<EmbeddingListener>> embeddings;
    for (int i = 0; i < kRequests; ++i) {
      texts.push_back(std::make_shared<Listener>());
      ASSERT_TRUE(serving.engine->Add(MakeRequest(i, 20 + 5 * (i % 7), 12), texts.back()).ok());
      embeddings.push_back(std::make_shared<EmbeddingListener>());
      ASSERT_TRUE(serving.engine->Add(Request(i, pooling), embeddings.back()).ok());
    }
    for (int i = 0; i < kRequests; ++i) {
      SCOPED_TRACE(::testing::Message() << "request " << i);
      ExpectNear(embeddings[i]->Wait(), OfWhole(Request(i, pooling).prompt, pooling));
      EXPECT_TRUE(texts[i]->WaitForEnd().ok());
      EXPECT_EQ(texts[i]->output().tokens.size(), 12);
    }
    EXPECT_EQ(serving.engine->Stats().steps_failed, 0);
  }
}

TEST_P(ServingOutputsTest, AreWholeAfterAStepFailedInAnyStage) {
  const auto n_stages = static_cast<uint32_t>(GetParam().cuts.size()) + 1;
  for (const auto failure : {LocalPipeline::Failure::kBefore, LocalPipeline::Failure::kDataLoss}) {
    for (uint32_t stage = 0; stage < n_stages; ++stage) {
      SCOPED_TRACE(::testing::Message() << "stage " << stage);
      Serving serving(GetParam().model, GetParam().cuts);
      serving.pipeline->FailBatch(stage, 2, failure);
      std::vector<std::shared_ptr<EmbeddingListener>> embeddings;
      for (int i = 0; i < kRequests; ++i) {
        embeddings.push_back(std::make_shared<EmbeddingListener>());
        ASSERT_TRUE(serving.engine->Add(Request(i, wire::POOLING_MEAN), embeddings.back()).ok());
      }
      for (int i = 0; i < kRequests; ++i) {
        SCOPED_TRACE(::testing::Message() << "request " << i);
        const std::vector<int32_t> prompt = Request(i, wire::POOLING_MEAN).prompt;
        ExpectNear(embeddings[i]->Wait(), OfWhole(prompt, wire::POOLING_MEAN));
      }
      EXPECT_GE(serving.engine->Stats().steps_failed, 1);
    }
  }
}

// Of the token behind each of the prompt's, [prompt][kVocabulary].
std::vector<std::vector<float>> LogprobsOfWhole(const std::string& path,
                                                const std::vector<int32_t>& prompt) {
  const auto whole = testing::WholeModel::Open(path, {});
  if (!whole.ok()) return {};
  std::vector<testing::BatchRow> rows;
  for (const int32_t token : prompt) {
    rows.push_back(
        {.token = token, .position = static_cast<int32_t>(rows.size()), .wants_logits = true});
  }
  const auto logits = (*whole)->Decode(rows);
  std::vector<std::vector<float>> logprobs;
  for (size_t i = 0; logits.ok() && i < logits->size(); i += kVocabulary) {
    std::vector<float>& row =
        logprobs.emplace_back(logits->begin() + static_cast<ptrdiff_t>(i),
                              logits->begin() + static_cast<ptrdiff_t>(i) + kVocabulary);
    double sum = 0;
    for (const float logit : row) sum += std::exp(double{logit});
    for (float& logit : row) logit -= static_cast<float>(std::log(sum));
  }
  return logprobs;
}

class PromptListener final : public GenerationListener {
 public:
  void OnToken(const wire::SampledToken& token) override {
    if (token.prompt_size() > 0) prompts_.push_back({token.prompt().begin(), token.prompt().end()});
    if (!token.end_of_generation()) ++tokens_;
  }
  void OnEnd(absl::Status status, FinishReason, const GenerationUsage&) override {
    end_ = std::move(status);
    ended_.Notify();
  }
  // The only one.
  std::vector<wire::PromptToken> Wait() {
    EXPECT_TRUE(ended_.WaitForNotificationWithTimeout(absl::Seconds(60)));
    EXPECT_EQ(end_, absl::OkStatus());
    EXPECT_GT(tokens_, 0);
    EXPECT_EQ(prompts_.size(), 1);
    return prompts_.empty() ? std::vector<wire::PromptToken>() : prompts_[0];
  }

 private:
  absl::Notification ended_;
  absl::Status end_;
  int tokens_ = 0;
  std::vector<std::vector<wire::PromptToken>> prompts_;
};

TEST_P(ServingOutputsTest, LogprobsOfPromptsAreLibllamasOwn) {
  const auto n_stages = static_cast<uint32_t>(GetParam().cuts.size()) + 1;
  for (const auto failure : {LocalPipeline::Failure::kBefore, LocalPipeline::Failure::kDataLoss}) {
    Serving serving(GetParam().model, GetParam().cuts);
    serving.pipeline->FailBatch(n_stages - 1, 3, failure);
    std::vector<std::shared_ptr<PromptListener>> listeners;
    const auto request_of = [](int i) {
      GenerationRequest request = MakeRequest(i, 20 + 5 * (i % 7), 6);
      request.sampler = {};
      request.sampler.set_ignore_eog(true);
      request.sampler.set_logprobs(2);
      request.sampler.set_prompt_logprobs(true);
      return request;
    };
    for (int i = 0; i < kRequests; ++i) {
      listeners.push_back(std::make_shared<PromptListener>());
      ASSERT_TRUE(serving.engine->Add(request_of(i), listeners.back()).ok());
    }
    for (int i = 0; i < kRequests; ++i) {
      SCOPED_TRACE(::testing::Message() << "request " << i);
      const std::vector<int32_t> prompt = request_of(i).prompt;
      const std::vector<wire::PromptToken> got = listeners[i]->Wait();
      const auto expected = LogprobsOfWhole(ModelPath(GetParam().model), prompt);
      ASSERT_EQ(got.size(), prompt.size());
      ASSERT_EQ(expected.size(), prompt.size());
      EXPECT_EQ(got[0].token().token(), prompt[0]);
      for (size_t at = 1; at < prompt.size(); ++at) {
        const wire::TokenLogprob& token = got[at].token();
        ASSERT_EQ(token.token(), prompt[at]);
        ASSERT_NEAR(token.logprob(), expected[at - 1][prompt[at]], kRounding) << at;
        ASSERT_EQ(got[at].top_size(), 2);
        const float most = *std::max_element(expected[at - 1].begin(), expected[at - 1].end());
        ASSERT_NEAR(got[at].top(0).logprob(), most, kRounding) << at;
        ASSERT_GE(got[at].top(0).logprob(), got[at].top(1).logprob());
      }
    }
    EXPECT_GE(serving.engine->Stats().steps_failed, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ServingOutputsTest,
                         ::testing::Values(Case{"llama", {2, 5}}, Case{"mamba2", {3}},
                                           Case{"falcon_h1", {3}}, Case{"gemma3", {}},
                                           Case{"gemma3_array", {3}}),
                         [](const auto& test) { return test.param.model; });

}  // namespace
}  // namespace strata
