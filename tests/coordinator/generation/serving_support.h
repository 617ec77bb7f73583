// Generations through real stages of small random models in one process: the models, a listener
// that records its events, and an engine over a pipeline.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "coordinator/generation/generation_engine.h"
#include "gtest/gtest.h"
#include "shard/device/engine.h"
#include "tests/support/local_pipeline.h"
#include "tests/support/model_zoo.h"
#include "tests/support/temp_folder.h"

namespace strata {

using testing::LocalPipeline;
using testing::LocalPipelineOptions;

inline constexpr int32_t kVocabulary = 96;
// The tolerance of a log-probability: batches of other sizes take other kernels, and states carry
// the rounding on. With a row of another request the difference is 3 and more.
inline constexpr float kRounding = 0.2f;

// The file of a model of the zoo, with a vocabulary. "NAME/32" and "NAME/64" have heads of that
// width; 32 is a block of the quantised types.
inline std::string ModelPath(const std::string& name) {
  static auto& paths = *new std::map<std::string, std::string>;
  std::string& path = paths[name];
  if (!path.empty()) return path;
  StartEngine();
  for (const testing::ZooModel& model : testing::ModelZoo()) {
    const uint32_t width = name == absl::StrCat(model.name, "/32")   ? 32
                           : name == absl::StrCat(model.name, "/64") ? 64
                                                                     : 0;
    if (model.name != name && width == 0) continue;
    testing::RandomModelSpec spec = testing::SpecOf(model);
    spec.name = absl::StrCat("serving_test_", model.name, "_", width);
    if (width > 0) {
      spec.metadata.emplace_back("attention.key_length", width);
      spec.metadata.emplace_back("attention.value_length", width);
      spec.metadata.emplace_back("rope.dimension_count", width);
    }
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    while (tokens.size() < kVocabulary) tokens.push_back(absl::StrCat("t", tokens.size(), " "));
    spec.metadata.emplace_back(".tokenizer.ggml.model", "llama");
    spec.metadata.emplace_back(".tokenizer.ggml.scores", std::vector<float>(kVocabulary, -1.0f));
    spec.metadata.emplace_back(".tokenizer.ggml.tokens", std::move(tokens));
    const auto written = WriteRandomModel(spec, testing::ProcessTempFolder());
    EXPECT_TRUE(written.ok()) << written.status();
    path = written.value_or("");
  }
  return path;
}

struct Output {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logprobs;  // [tokens][kVocabulary]
};

// The outputs are the same as far as `got` goes: the log-probabilities at each place are equal but
// for rounding. Where two tokens are equally likely the outputs may part.
inline void ExpectSame(const Output& got, const Output& alone) {
  for (size_t i = 0; i < got.tokens.size(); ++i) {
    ASSERT_LT(i, alone.tokens.size());
    float largest = 0;
    for (int32_t token = 0; token < kVocabulary; ++token) {
      largest = std::max(largest, std::abs(got.logprobs[i][token] - alone.logprobs[i][token]));
    }
    ASSERT_LT(largest, kRounding) << "at token " << i;
    if (got.tokens[i] != alone.tokens[i]) return;
  }
}

class Listener final : public GenerationListener {
 public:
  void OnToken(const wire::SampledToken& token) override {
    std::lock_guard lock(mu_);
    output_.tokens.push_back(token.token());
    std::vector<float>& logprobs = output_.logprobs.emplace_back(kVocabulary, 0.0f);
    for (const wire::TokenLogprob& top : token.top()) logprobs.at(top.token()) = top.logprob();
    changed_.notify_all();
  }
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override {
    std::lock_guard lock(mu_);
    end_ = std::move(status);
    reason_ = reason;
    usage_ = usage;
    changed_.notify_all();
  }
  absl::Status WaitForEnd() {
    std::unique_lock lock(mu_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [this] { return end_.has_value(); })) {
      return absl::DeadlineExceededError("the generation does not end");
    }
    return *end_;
  }
  void WaitForTokens(size_t n) {
    std::unique_lock lock(mu_);
    changed_.wait_for(lock, std::chrono::seconds(60),
                      [&] { return end_.has_value() || output_.tokens.size() >= n; });
  }
  Output output() {
    std::lock_guard lock(mu_);
    return output_;
  }
  GenerationUsage usage() {
    std::lock_guard lock(mu_);
    return usage_;
  }
  FinishReason reason() {
    std::lock_guard lock(mu_);
    return reason_;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  Output output_;
  std::optional<absl::Status> end_;
  GenerationUsage usage_;
  FinishReason reason_ = FinishReason::kCancelled;
};

inline GenerationRequest MakeRequest(int32_t i, uint32_t n_prompt, uint32_t tokens_max) {
  GenerationRequest request;
  request.client = absl::StrCat(i % 3);
  for (uint32_t p = 0; p < n_prompt; ++p) {
    // Every third prompt shares its beginning with others.
    const int32_t v = i % 3 == 0 && p < 24 ? 0 : i;
    request.prompt.push_back(3 + (static_cast<int32_t>(p) * 37 + v * 11) % (kVocabulary - 3));
  }
  request.tokens_max = tokens_max;
  request.sampler.set_ignore_eog(true);
  request.sampler.set_logprobs(kVocabulary);
  request.sampler.set_seed(static_cast<uint64_t>(i));
  if (i % 2 == 1) request.sampler.set_temperature(0.8f);
  return request;
}

class Serving {
 public:
  explicit Serving(const std::string& model, std::vector<uint32_t> cuts, uint32_t n_slots = 4,
                   SchedulerPolicy policy = {.chunk_tokens = 16})
      : Serving({.model_path = ModelPath(model), .cuts = std::move(cuts), .n_slots = n_slots},
                policy) {}
  // Keys and values are f32 unless the options say otherwise.
  Serving(LocalPipelineOptions options, SchedulerPolicy policy)
      : Serving(std::move(options), GenerationEngineOptions{.policy = policy}) {}
  Serving(LocalPipelineOptions options, GenerationEngineOptions engine_options)
      : engine(std::make_shared<GenerationEngine>(std::move(engine_options))) {
    if (options.cache.type_k.empty()) options.cache.type_k = "f32";
    if (options.cache.type_v.empty()) options.cache.type_v = "f32";
    auto opened = LocalPipeline::Open(options, engine.get());
    CHECK_OK(opened);
    pipeline = *std::move(opened);
    const absl::Status started = engine->Start(pipeline.get());
    EXPECT_TRUE(started.ok()) << started;
  }
  ~Serving() {
    engine->Stop(absl::OkStatus());
    pipeline.reset();
  }

  Output Generate(const GenerationRequest& request) {
    const auto listener = std::make_shared<Listener>();
    const auto id = engine->Add(request, listener);
    EXPECT_TRUE(id.ok()) << id.status();
    const absl::Status end = listener->WaitForEnd();
    EXPECT_TRUE(end.ok()) << end;
    cached = listener->usage().cached_tokens;
    return listener->output();
  }

  const std::shared_ptr<GenerationEngine> engine;  // shared with drafters
  std::unique_ptr<LocalPipeline> pipeline;
  uint32_t cached = 0;  // of the last Generate()
};

}  // namespace strata
