// Embeddings through real stages of small random models, beside generations, compared with libllama's own
// pooling over the whole model.
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
    std::lock_guard lock(mu_);
    end_ = std::move(status);
    changed_.notify_all();
  }
  // The only one.
  std::vector<float> Wait() {
    std::unique_lock lock(mu_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(60), [this] { return end_.has_value(); }));
    EXPECT_EQ(end_.value_or(absl::UnknownError("no end")), absl::OkStatus());
    EXPECT_EQ(embeddings_.size(), 1);
    return embeddings_.empty() ? std::vector<float>() : embeddings_[0];
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<std::vector<float>> embeddings_;
  std::optional<absl::Status> end_;
};

class ServingEmbeddingsTest : public ::testing::TestWithParam<Case> {
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

TEST_P(ServingEmbeddingsTest, AreLibllamasOwnBesideGenerations) {
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

TEST_P(ServingEmbeddingsTest, AreWholeAfterAStepFailedInAnyStage) {
  const auto n_stages = static_cast<uint32_t>(GetParam().cuts.size()) + 1;
  for (const auto failure : {LocalPipeline::Failure::kBefore, LocalPipeline::Failure::kDataLoss}) {
    for (uint32_t stage = 0; stage < n_stages; ++stage) {
      SCOPED_TRACE(::testing::Message() << "stage " << stage);
      Serving serving(GetParam().model, GetParam().cuts);
      serving.pipeline->FailBatch(stage, 2, failure);
      std::vector<std::shared_ptr<EmbeddingListener>> embeddings;
      for (int i = 0; i < kRequests; ++i) {
        embeddings.push_back(std::make_shared<EmbeddingListener>());
        ASSERT_TRUE(
            serving.engine->Add(Request(i, wire::POOLING_MEAN), embeddings.back()).ok());
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

INSTANTIATE_TEST_SUITE_P(Models, ServingEmbeddingsTest,
                         ::testing::Values(Case{"llama", {2, 5}}, Case{"mamba2", {3}},
                                           Case{"falcon_h1", {3}}, Case{"gemma3", {}},
                                           Case{"gemma3_array", {3}}),
                         [](const auto& test) { return test.param.model; });

}  // namespace
}  // namespace strata
