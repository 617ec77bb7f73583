#include "coordinator/generation/generation_call.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;

class Ear final : public GenerationSink {
 public:
  void OnStarted(const std::vector<int32_t>& prompt) override {
    heard.push_back("started " + std::to_string(prompt.size()));
  }
  void OnToken(const wire::SampledToken& token) override {
    heard.push_back("token " + std::to_string(token.token()));
  }
  void OnEnd(absl::Status status, FinishReason, const GenerationUsage&) override {
    heard.push_back("end " + std::string(status.message()));
  }
  std::vector<std::string> heard;
};

wire::SampledToken Token(int32_t id) {
  wire::SampledToken token;
  token.set_token(id);
  return token;
}

TEST(GenerationCall, TellsTheStartFirst) {
  const auto ear = std::make_shared<Ear>();
  GenerationCall call(ear);
  const auto server = std::make_shared<GenerationEngine>(GenerationEngineOptions{});
  call.OnToken(Token(1));
  call.OnToken(Token(2));
  EXPECT_TRUE(ear->heard.empty());
  call.Start({7, 8, 9}, server, 1);
  call.OnToken(Token(3));
  call.OnEnd(absl::OkStatus(), FinishReason::kLength, {});
  EXPECT_THAT(ear->heard, ElementsAre("started 3", "token 1", "token 2", "token 3", "end "));
}

TEST(GenerationCall, ATextThatHasEndedBeforeItsStartIsToldInOrder) {
  const auto ear = std::make_shared<Ear>();
  GenerationCall call(ear);
  const auto server = std::make_shared<GenerationEngine>(GenerationEngineOptions{});
  call.OnToken(Token(1));
  call.OnEnd(absl::OkStatus(), FinishReason::kLength, {});
  call.Start({7}, server, 1);
  EXPECT_THAT(ear->heard, ElementsAre("started 1", "token 1", "end "));
}

TEST(GenerationCall, WhatIsRefusedNeverStarts) {
  const auto ear = std::make_shared<Ear>();
  GenerationCall call(ear);
  call.Cancel();
  call.Refuse(absl::UnavailableError("later"));
  EXPECT_THAT(ear->heard, ElementsAre("end later"));
}

TEST(GenerationCall, WhoWorksForItsStartHearsThatNobodyWantsIt) {
  const auto ear = std::make_shared<Ear>();
  int unwanted = 0;
  GenerationCall call(ear);
  call.OnUnwanted([&] { ++unwanted; });
  EXPECT_TRUE(call.wanted());
  call.Finish();
  call.Cancel();
  EXPECT_FALSE(call.wanted());
  EXPECT_EQ(unwanted, 1);
  GenerationCall late(ear);
  late.Cancel();
  late.OnUnwanted([&] { ++unwanted; });
  EXPECT_EQ(unwanted, 2);
}

TEST(GenerationCall, OnceItIsDecidedNobodyWorksForItsStart) {
  const auto ear = std::make_shared<Ear>();
  const auto server = std::make_shared<GenerationEngine>(GenerationEngineOptions{});
  int unwanted = 0;
  GenerationCall started(ear);
  started.OnUnwanted([&] { ++unwanted; });
  started.Start({1}, server, 1);
  started.Cancel();
  GenerationCall refused(ear);
  refused.Refuse(absl::UnavailableError("later"));
  refused.Cancel();
  refused.OnUnwanted([&] { ++unwanted; });
  EXPECT_EQ(unwanted, 0);
}

// An ear that asks for the end from inside its own call.
TEST(GenerationCall, MayBeCancelledFromWhatItTells) {
  class Impatient final : public GenerationSink {
   public:
    void OnStarted(const std::vector<int32_t>&) override {}
    void OnToken(const wire::SampledToken&) override {
      ++tokens;
      call->Cancel();
    }
    void OnEnd(absl::Status, FinishReason, const GenerationUsage&) override { ended = true; }
    GenerationCall* call = nullptr;
    int tokens = 0;
    bool ended = false;
  };
  const auto ear = std::make_shared<Impatient>();
  GenerationCall call(ear);
  ear->call = &call;
  const auto server = std::make_shared<GenerationEngine>(GenerationEngineOptions{});
  call.Start({1}, server, 1);
  call.OnToken(Token(1));
  call.OnEnd(absl::CancelledError(""), FinishReason::kCancelled, {});
  EXPECT_EQ(ear->tokens, 1);
  EXPECT_TRUE(ear->ended);
}

}  // namespace
}  // namespace strata
