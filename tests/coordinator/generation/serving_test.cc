// Many texts at a time through real stages of small random models, against each text by itself: one
// with a plain cache, one with states, one that mixes both, one with sliding windows.
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
  static constexpr int kTexts = 12;
  static GenerationRequest Request(int i) { return Ask(i, 20 + 5 * (i % 7), 24); }

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
  GenerationRequest request = Request(1);
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
  GenerationRequest request = Request(1);
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
  GenerationRequest request = Ask(1, 30, 300);
  request.shift_context = true;
  request.keep_tokens = 4;
  EXPECT_EQ(serving.Write(request).tokens.size(), 300);
  request.shift_context = false;
  EXPECT_EQ(serving.Write(request).tokens.size(), 128 - 30);
  EXPECT_EQ(serving.server->Stats().steps_failed, 0);
}

TEST(Serving, AShiftedTextGoesOnAfterAFailureAsItWouldHave) {
  GenerationRequest request = Ask(1, 30, 400);
  request.shift_context = true;
  request.keep_tokens = 4;
  Serving calm("llama", {3});
  const Text expected = calm.Write(request);
  ASSERT_EQ(expected.tokens.size(), 400);
  for (uint32_t stage : {0, 1}) {
    for (const uint64_t step : {140, 290}) {  // once or three times shifted
      Serving serving("llama", {3});
      serving.pipeline->FailBatch(stage, step, LocalPipeline::Failure::kBefore);
      const Text text = serving.Write(request);
      EXPECT_EQ(text.tokens.size(), 400);
      ExpectSame(text, expected);
      EXPECT_GE(serving.server->Stats().steps_failed, 1);
    }
  }
}

// Copies may stand in the cells of what they were copied from, which a shift moves.
TEST(Serving, AShiftMovesNoOtherText) {
  GenerationRequest shifted = Ask(2, 100, 60);
  shifted.shift_context = true;
  GenerationRequest other = Ask(2, 100, 28);
  Serving calm("llama", {3});
  const Text expected_shifted = calm.Write(shifted);
  const Text expected = calm.Write(other);
  Serving serving("llama", {3});
  const auto first = std::make_shared<Listener>(), second = std::make_shared<Listener>();
  ASSERT_TRUE(serving.server->Add(shifted, first).ok());
  first->WaitForTokens(2);
  ASSERT_TRUE(serving.server->Add(other, second).ok());
  EXPECT_TRUE(second->WaitForEnd().ok());
  EXPECT_TRUE(first->WaitForEnd().ok());
  EXPECT_EQ(second->text().tokens.size(), 28);
  ExpectSame(second->text(), expected);
  ExpectSame(first->text(), expected_shifted);
  EXPECT_EQ(serving.server->Stats().steps_failed, 0);
}

TEST(Serving, MirostatAndPenaltiesGoOnAfterAFailure) {
  GenerationRequest request = Ask(1, 30, 40);
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
