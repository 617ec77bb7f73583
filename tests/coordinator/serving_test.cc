// Many texts at a time through real stages of small random models, against each text by itself: one
// with a plain cache, one with states, one that mixes both, one with sliding windows.
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
#include "coordinator/text_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/engine.h"
#include "tests/support/local_pipeline.h"
#include "tests/support/model_zoo.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using testing::LocalPipeline;
using testing::LocalPipelineOptions;

constexpr int32_t kVocabulary = 96;
// Of a log-probability: batches of other sizes take other kernels, and states carry it on. With a
// row of another text it is 3 and more.
constexpr float kRounding = 0.2f;

// The model of the zoo with a vocabulary to write with, in a file.
std::string ModelPath(const std::string& name) {
  static auto& paths = *new std::map<std::string, std::string>;
  std::string& path = paths[name];
  if (!path.empty()) return path;
  StartEngine();
  for (const testing::ZooModel& model : testing::ModelZoo()) {
    if (model.name != name) continue;
    testing::RandomModelSpec spec = testing::SpecOf(model);
    spec.name = absl::StrCat("serving_test_", name);
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

struct Text {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logprobs;  // [tokens][kVocabulary]
};

// The same text, as far as `got` goes: what was likely at each place is the same but for rounding.
// Where two tokens were as likely as each other the texts may part.
void ExpectSame(const Text& got, const Text& alone) {
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

class Listener final : public TextListener {
 public:
  void OnToken(const wire::SampledToken& token) override {
    std::lock_guard lock(mu_);
    text_.tokens.push_back(token.token());
    std::vector<float>& logprobs = text_.logprobs.emplace_back(kVocabulary, 0.0f);
    for (const wire::TokenLogprob& top : token.top()) logprobs.at(top.token()) = top.logprob();
    changed_.notify_all();
  }
  void OnEnd(absl::Status status, FinishReason, const TextUsage& usage) override {
    std::lock_guard lock(mu_);
    end_ = std::move(status);
    usage_ = usage;
    changed_.notify_all();
  }
  absl::Status WaitForEnd() {
    std::unique_lock lock(mu_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [this] { return end_.has_value(); })) {
      return absl::DeadlineExceededError("the text does not end");
    }
    return *end_;
  }
  void WaitForTokens(size_t n) {
    std::unique_lock lock(mu_);
    changed_.wait_for(lock, std::chrono::seconds(60),
                      [&] { return end_.has_value() || text_.tokens.size() >= n; });
  }
  Text text() {
    std::lock_guard lock(mu_);
    return text_;
  }
  TextUsage usage() {
    std::lock_guard lock(mu_);
    return usage_;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  Text text_;
  std::optional<absl::Status> end_;
  TextUsage usage_;
};

TextRequest Ask(int32_t i, uint32_t n_prompt, uint32_t tokens_max) {
  TextRequest request;
  request.client = absl::StrCat(i % 3);
  for (uint32_t p = 0; p < n_prompt; ++p) {
    // Every third shares its beginning with others.
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
                   SchedulerPolicy policy = {.chunk_tokens = 16}) {
    server.emplace(TextServerOptions{.policy = policy});
    auto opened = LocalPipeline::Open({.model_path = ModelPath(model),
                                       .cuts = std::move(cuts),
                                       .n_slots = n_slots,
                                       .cache_type = "f32"},
                                      &*server);
    CHECK_OK(opened);
    pipeline = *std::move(opened);
    const absl::Status started = server->Start(pipeline.get());
    EXPECT_TRUE(started.ok()) << started;
  }
  ~Serving() {
    server->Stop(absl::OkStatus());
    pipeline.reset();
  }

  Text Write(const TextRequest& request) {
    const auto listener = std::make_shared<Listener>();
    const auto id = server->Add(request, listener);
    EXPECT_TRUE(id.ok()) << id.status();
    const absl::Status end = listener->WaitForEnd();
    EXPECT_TRUE(end.ok()) << end;
    cached = listener->usage().cached_tokens;
    return listener->text();
  }

  std::optional<TextServer> server;
  std::unique_ptr<LocalPipeline> pipeline;
  uint32_t cached = 0;  // of the last Write()
};

struct Case {
  std::string model;
  std::vector<uint32_t> cuts;
};

class ServingTest : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int kTexts = 12;
  static TextRequest Request(int i) { return Ask(i, 20 + 5 * (i % 7), 24); }

  // Each by itself, one after the other, with nothing kept between.
  std::vector<Text> Alone() {
    Serving serving(GetParam().model, GetParam().cuts, 1,
                    {.chunk_tokens = 16, .keep_prefixes = false});
    std::vector<Text> texts;
    for (int i = 0; i < kTexts; ++i) texts.push_back(serving.Write(Request(i)));
    return texts;
  }
};

TEST_P(ServingTest, TextsTogetherAreAsEachByItself) {
  const auto alone = Alone();
  Serving serving(GetParam().model, GetParam().cuts);
  std::vector<std::shared_ptr<Listener>> listeners;
  for (int round = 0; round < 2; ++round) {
    // The second time, kept sequences are gone on from.
    listeners.clear();
    for (int i = 0; i < kTexts; ++i) {
      listeners.push_back(std::make_shared<Listener>());
      ASSERT_TRUE(serving.server->Add(Request(i), listeners.back()).ok());
    }
    for (int i = 0; i < kTexts; ++i) {
      const absl::Status end = listeners[i]->WaitForEnd();
      EXPECT_TRUE(end.ok()) << end;
      SCOPED_TRACE(::testing::Message() << "text " << i << ", round " << round);
      const Text text = listeners[i]->text();
      EXPECT_EQ(text.tokens.size(), alone[i].tokens.size());
      ExpectSame(text, alone[i]);
    }
  }
  const SchedulerStats stats = serving.server->Stats();
  EXPECT_EQ(stats.steps_failed, 0);
  EXPECT_LT(stats.steps, stats.tokens);  // they shared steps
}

TEST_P(ServingTest, CancelledTextsLeaveNoTraceInOthers) {
  const auto alone = Alone();
  Serving serving(GetParam().model, GetParam().cuts);
  std::vector<std::shared_ptr<Listener>> listeners;
  for (int i = 0; i < kTexts; ++i) {
    listeners.push_back(std::make_shared<Listener>());
    const auto id = serving.server->Add(Request(i), listeners.back());
    ASSERT_TRUE(id.ok());
    if (i % 4 == 1) {
      listeners.back()->WaitForTokens(3);
      serving.server->Cancel(*id);
    }
    if (i % 4 == 3) serving.server->Finish(*id);
  }
  for (int i = 0; i < kTexts; ++i) {
    EXPECT_TRUE(listeners[i]->WaitForEnd().ok());
    SCOPED_TRACE(::testing::Message() << "text " << i);
    const Text text = listeners[i]->text();
    EXPECT_TRUE(i % 2 == 1 || text.tokens.size() == alone[i].tokens.size());
    ExpectSame(text, alone[i]);
  }
  EXPECT_EQ(serving.server->Stats().steps_failed, 0);
}

TEST_P(ServingTest, AStepThatFailsInAnyStageIsMended) {
  const auto alone = Alone();
  const auto n_stages = static_cast<uint32_t>(GetParam().cuts.size()) + 1;
  for (const auto failure : {LocalPipeline::Failure::kBefore, LocalPipeline::Failure::kDataLoss}) {
    Serving serving(GetParam().model, GetParam().cuts);
    for (uint32_t stage = 0; stage < n_stages; ++stage) {
      SCOPED_TRACE(::testing::Message() << "stage " << stage);
      serving.pipeline->FailBatch(stage, 5 + stage, failure);
      std::vector<std::shared_ptr<Listener>> listeners;
      for (int i = 0; i < kTexts; ++i) {
        listeners.push_back(std::make_shared<Listener>());
        ASSERT_TRUE(serving.server->Add(Request(i), listeners.back()).ok());
      }
      for (int i = 0; i < kTexts; ++i) {
        const absl::Status end = listeners[i]->WaitForEnd();
        EXPECT_TRUE(end.ok()) << end;
        SCOPED_TRACE(::testing::Message() << "text " << i);
        const Text text = listeners[i]->text();
        EXPECT_EQ(text.tokens.size(), alone[i].tokens.size());
        ExpectSame(text, alone[i]);
      }
    }
    EXPECT_GE(serving.server->Stats().steps_failed, n_stages);
  }
}

TEST_P(ServingTest, TheNextTurnIsFedOnlyWhatIsNew) {
  Serving fresh(GetParam().model, GetParam().cuts, 4, {.keep_prefixes = false});
  Serving serving(GetParam().model, GetParam().cuts);
  TextRequest request = Request(1);
  const std::vector<int32_t> first = serving.Write(request).tokens;
  const auto n_fed = static_cast<uint32_t>(request.prompt.size() + first.size()) - 1;
  request.prompt.insert(request.prompt.end(), first.begin(), first.end());
  for (int32_t token = 10; token < 20; ++token) request.prompt.push_back(token);
  ExpectSame(serving.Write(request), fresh.Write(request));
  EXPECT_EQ(serving.cached, n_fed);
}

TEST_P(ServingTest, OneThatDoesNotOpenEndsAlone) {
  Serving serving(GetParam().model, GetParam().cuts);
  const auto good = std::make_shared<Listener>();
  const auto bad = std::make_shared<Listener>();
  TextRequest request = Request(1);
  request.sampler.set_grammar("root ::= (((");
  ASSERT_TRUE(serving.server->Add(Request(2), good).ok());
  ASSERT_TRUE(serving.server->Add(request, bad).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(bad->WaitForEnd()));
  EXPECT_TRUE(good->WaitForEnd().ok());
  EXPECT_EQ(serving.server->Stats().steps_failed, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, ServingTest,
                         ::testing::Values(Case{"llama", {2, 5}}, Case{"mamba2", {3}},
                                           Case{"falcon_h1", {3}}, Case{"gemma3", {}},
                                           Case{"gemma3_array", {3}}),
                         [](const auto& test) { return test.param.model; });

TEST(Serving, ALongTextGoesOnPastTheContextWhereItMayShift) {
  Serving serving("llama", {3});
  TextRequest request = Ask(1, 30, 300);
  request.shift_context = true;
  request.keep_tokens = 4;
  EXPECT_EQ(serving.Write(request).tokens.size(), 300);
  request.shift_context = false;
  EXPECT_EQ(serving.Write(request).tokens.size(), 128 + 1 - 30);
  EXPECT_EQ(serving.server->Stats().steps_failed, 0);
}

TEST(Serving, MirostatAndPenaltiesGoOnAfterAFailure) {
  TextRequest request = Ask(1, 30, 40);
  request.sampler.set_mirostat(2);
  request.sampler.set_mirostat_tau(3);
  request.sampler.set_mirostat_eta(0.1f);
  request.sampler.set_penalty_last_n(-1);
  request.sampler.set_penalty_repeat(1.3f);
  Serving calm("llama", {3});
  const Text expected = calm.Write(request);
  for (uint32_t stage : {0, 1}) {
    Serving serving("llama", {3});
    serving.pipeline->FailBatch(stage, 20, LocalPipeline::Failure::kBefore);
    const Text text = serving.Write(request);
    EXPECT_EQ(text.tokens.size(), expected.tokens.size());
    ExpectSame(text, expected);
    EXPECT_GE(serving.server->Stats().steps_failed, 1);
  }
}

}  // namespace
}  // namespace strata
