// Many requests at a time through real stages of small random models, compared with each request
// alone: one model with a plain cache, one with states, one that mixes both, one with sliding
// windows.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/generation/serving_support.h"

namespace strata {
namespace {

struct Case {
  std::string model;
  std::vector<uint32_t> cuts;
};

class ServingTest : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int kRequests = 12;
  static GenerationRequest Request(int i) { return MakeRequest(i, 20 + 5 * (i % 7), 24); }

  // Each request alone, one after the other, with no sequences kept between.
  std::vector<Output> Alone() {
    Serving serving(
        GetParam().model, GetParam().cuts, 1,
        {.chunk_tokens = 16, .keep_prefixes = false, .speculation = wire::SPECULATION_OFF});
    std::vector<Output> outputs;
    for (int i = 0; i < kRequests; ++i) outputs.push_back(serving.Generate(Request(i)));
    return outputs;
  }
};

TEST_P(ServingTest, RequestsTogetherGetTheOutputsOfEachAlone) {
  const auto alone = Alone();
  Serving serving(GetParam().model, GetParam().cuts);
  std::vector<std::shared_ptr<Listener>> listeners;
  for (int round = 0; round < 2; ++round) {
    // The second round goes on from kept sequences.
    listeners.clear();
    for (int i = 0; i < kRequests; ++i) {
      listeners.push_back(std::make_shared<Listener>());
      ASSERT_TRUE(serving.engine->Add(Request(i), listeners.back()).ok());
    }
    for (int i = 0; i < kRequests; ++i) {
      const absl::Status end = listeners[i]->WaitForEnd();
      EXPECT_TRUE(end.ok()) << end;
      SCOPED_TRACE(::testing::Message() << "request " << i << ", round " << round);
      const Output output = listeners[i]->output();
      EXPECT_EQ(output.tokens.size(), alone[i].tokens.size());
      ExpectSame(output, alone[i]);
    }
  }
  const SchedulerStats stats = serving.engine->Stats();
  EXPECT_EQ(stats.steps_failed, 0);
  EXPECT_LT(stats.steps, stats.tokens);  // they shared steps
}

TEST_P(ServingTest, CancelledRequestsLeaveNoTraceInOthers) {
  const auto alone = Alone();
  Serving serving(GetParam().model, GetParam().cuts);
  std::vector<std::shared_ptr<Listener>> listeners;
  for (int i = 0; i < kRequests; ++i) {
    listeners.push_back(std::make_shared<Listener>());
    const auto id = serving.engine->Add(Request(i), listeners.back());
    ASSERT_TRUE(id.ok());
    if (i % 4 == 1) {
      listeners.back()->WaitForTokens(3);
      serving.engine->Cancel(*id);
    }
    if (i % 4 == 3) serving.engine->Finish(*id);
  }
  for (int i = 0; i < kRequests; ++i) {
    EXPECT_TRUE(listeners[i]->WaitForEnd().ok());
    SCOPED_TRACE(::testing::Message() << "request " << i);
    const Output output = listeners[i]->output();
    EXPECT_TRUE(i % 2 == 1 || output.tokens.size() == alone[i].tokens.size());
    ExpectSame(output, alone[i]);
  }
  EXPECT_EQ(serving.engine->Stats().steps_failed, 0);
}

TEST_P(ServingTest, AStepThatFailsInAnyStageIsRecovered) {
  const auto alone = Alone();
  const auto n_stages = static_cast<uint32_t>(GetParam().cuts.size()) + 1;
  for (const auto failure : {LocalPipeline::Failure::kBefore, LocalPipeline::Failure::kDataLoss}) {
    Serving serving(GetParam().model, GetParam().cuts);
    for (uint32_t stage = 0; stage < n_stages; ++stage) {
      SCOPED_TRACE(::testing::Message() << "stage " << stage);
      serving.pipeline->FailBatch(stage, 5 + stage, failure);
      std::vector<std::shared_ptr<Listener>> listeners;
      for (int i = 0; i < kRequests; ++i) {
        listeners.push_back(std::make_shared<Listener>());
        ASSERT_TRUE(serving.engine->Add(Request(i), listeners.back()).ok());
      }
      for (int i = 0; i < kRequests; ++i) {
        const absl::Status end = listeners[i]->WaitForEnd();
        EXPECT_TRUE(end.ok()) << end;
        SCOPED_TRACE(::testing::Message() << "request " << i);
        const Output output = listeners[i]->output();
        EXPECT_EQ(output.tokens.size(), alone[i].tokens.size());
        ExpectSame(output, alone[i]);
      }
    }
    EXPECT_GE(serving.engine->Stats().steps_failed, n_stages);
  }
}

// A request whose sampler looks back at the text in one way or another.
GenerationRequest RequestThatLooksBack(int i) {
  GenerationRequest request = MakeRequest(i, 20, 24);
  wire::SamplerSettings& sampler = request.sampler;
  sampler.set_temperature(i % 2 == 0 ? 0.0f : 1.2f);
  switch (i % 6) {
    case 1:
      sampler.set_penalty_last_n(-1);
      sampler.set_penalty_repeat(1.3f);
      break;
    case 2:
      sampler.set_dry_multiplier(0.8f);
      sampler.set_dry_base(1.75f);
      sampler.set_dry_allowed_length(2);
      sampler.set_dry_penalty_last_n(-1);
      break;
    case 3:
      sampler.set_mirostat(2);
      sampler.set_mirostat_tau(5);
      sampler.set_mirostat_eta(0.1f);
      break;
    case 4:
      sampler.set_grammar("root ::= (\"t\" [0-9]+ \" \" \"t\" [1-7]+ \" \")+");
      break;
    case 5:  // it ends by itself
      sampler.set_ignore_eog(false);
      sampler.mutable_stop_tokens()->Add(request.prompt[3]);
      break;
    default:
      break;
  }
  return request;
}

TEST_P(ServingTest, DraftsChangeNothing) {
  Serving plain(GetParam().model, GetParam().cuts, 1,
                {.keep_prefixes = false, .speculation = wire::SPECULATION_OFF});
  Serving serving(GetParam().model, GetParam().cuts, 1,
                  {.keep_prefixes = false, .speculation = wire::SPECULATION_NGRAM});
  for (int i = 0; i < 12; ++i) {
    SCOPED_TRACE(::testing::Message() << "request " << i);
    GenerationRequest request = RequestThatLooksBack(i);
    const Output wanted = plain.Generate(request);
    // Some of the drafts are wrong, and some are behind the end.
    request.prediction = wanted.tokens;
    for (size_t at = 3; at < wanted.tokens.size(); at += 5) request.prediction[at] = 3;
    request.prediction.insert(request.prediction.end(), {3, 4, 5, request.prompt[3]});
    const Output output = serving.Generate(request);
    EXPECT_EQ(output.tokens, wanted.tokens);
    EXPECT_EQ(output.logprobs, wanted.logprobs);  // to the last bit
  }
  const SchedulerStats stats = serving.engine->Stats();
  EXPECT_EQ(stats.steps_failed, 0);
  const bool can = GetParam().model == "llama";  // others have states, windows, or one stage
  EXPECT_EQ(stats.accepted_tokens() > 60, can) << stats.accepted_tokens();
  EXPECT_EQ(stats.draft_tokens() > stats.accepted_tokens(), can) << stats.draft_tokens();
}

TEST_P(ServingTest, TheNextTurnIsFedOnlyWhatIsNew) {
  Serving fresh(GetParam().model, GetParam().cuts, 4, {.keep_prefixes = false});
  Serving serving(GetParam().model, GetParam().cuts);
  GenerationRequest request = Request(1);
  const std::vector<int32_t> first = serving.Generate(request).tokens;
  const auto n_fed = static_cast<uint32_t>(request.prompt.size() + first.size()) - 1;
  request.prompt.insert(request.prompt.end(), first.begin(), first.end());
  for (int32_t token = 10; token < 20; ++token) request.prompt.push_back(token);
  ExpectSame(serving.Generate(request), fresh.Generate(request));
  EXPECT_EQ(serving.cached, n_fed);
}

TEST_P(ServingTest, ARequestThatDoesNotOpenEndsAlone) {
  Serving serving(GetParam().model, GetParam().cuts);
  const auto good = std::make_shared<Listener>();
  const auto bad = std::make_shared<Listener>();
  GenerationRequest request = Request(1);
  request.sampler.set_grammar("root ::= (((");
  ASSERT_TRUE(serving.engine->Add(Request(2), good).ok());
  ASSERT_TRUE(serving.engine->Add(request, bad).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(bad->WaitForEnd()));
  EXPECT_TRUE(good->WaitForEnd().ok());
  EXPECT_EQ(serving.engine->Stats().steps_failed, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, ServingTest,
                         ::testing::Values(Case{"llama", {2, 5}}, Case{"mamba2", {3}},
                                           Case{"falcon_h1", {3}}, Case{"gemma3", {}},
                                           Case{"gemma3_array", {3}}),
                         [](const auto& test) { return test.param.model; });

TEST(Serving, ALongGenerationGoesOnPastTheContextWhereItMayShift) {
  Serving serving("llama", {3});
  GenerationRequest request = MakeRequest(1, 30, 300);
  request.shift_context = true;
  request.keep_tokens = 4;
  EXPECT_EQ(serving.Generate(request).tokens.size(), 300);
  request.shift_context = false;
  EXPECT_EQ(serving.Generate(request).tokens.size(), 128 - 30);
  EXPECT_EQ(serving.engine->Stats().steps_failed, 0);
}

TEST(Serving, AShiftedSequenceGoesOnUnchangedAfterAFailure) {
  GenerationRequest request = MakeRequest(1, 30, 400);
  request.shift_context = true;
  request.keep_tokens = 4;
  Serving calm("llama", {3});
  const Output expected = calm.Generate(request);
  ASSERT_EQ(expected.tokens.size(), 400);
  for (uint32_t stage : {0, 1}) {
    for (const uint64_t step : {140, 290}) {  // shifted once or three times
      Serving serving("llama", {3});
      serving.pipeline->FailBatch(stage, step, LocalPipeline::Failure::kBefore);
      const Output output = serving.Generate(request);
      EXPECT_EQ(output.tokens.size(), 400);
      ExpectSame(output, expected);
      EXPECT_GE(serving.engine->Stats().steps_failed, 1);
    }
  }
}

// Copies may share the cells of their source, which a shift moves.
TEST(Serving, AShiftMovesNoOtherSequence) {
  GenerationRequest shifted = MakeRequest(2, 100, 60);
  shifted.shift_context = true;
  GenerationRequest other = MakeRequest(2, 100, 28);
  Serving calm("llama", {3});
  const Output expected_shifted = calm.Generate(shifted);
  const Output expected = calm.Generate(other);
  Serving serving("llama", {3});
  const auto first = std::make_shared<Listener>(), second = std::make_shared<Listener>();
  ASSERT_TRUE(serving.engine->Add(shifted, first).ok());
  first->WaitForTokens(2);
  ASSERT_TRUE(serving.engine->Add(other, second).ok());
  EXPECT_TRUE(second->WaitForEnd().ok());
  EXPECT_TRUE(first->WaitForEnd().ok());
  EXPECT_EQ(second->output().tokens.size(), 28);
  ExpectSame(second->output(), expected);
  ExpectSame(first->output(), expected_shifted);
  EXPECT_EQ(serving.engine->Stats().steps_failed, 0);
}

TEST(Serving, MirostatAndPenaltiesGoOnAfterAFailure) {
  GenerationRequest request = MakeRequest(1, 30, 40);
  request.sampler.set_mirostat(2);
  request.sampler.set_mirostat_tau(3);
  request.sampler.set_mirostat_eta(0.1f);
  request.sampler.set_penalty_last_n(-1);
  request.sampler.set_penalty_repeat(1.3f);
  Serving calm("llama", {3});
  const Output expected = calm.Generate(request);
  for (uint32_t stage : {0, 1}) {
    Serving serving("llama", {3});
    serving.pipeline->FailBatch(stage, 20, LocalPipeline::Failure::kBefore);
    const Output output = serving.Generate(request);
    EXPECT_EQ(output.tokens.size(), expected.tokens.size());
    ExpectSame(output, expected);
    EXPECT_GE(serving.engine->Stats().steps_failed, 1);
  }
}

}  // namespace
}  // namespace strata
