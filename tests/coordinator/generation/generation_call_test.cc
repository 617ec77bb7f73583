#include "coordinator/generation/generation_call.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;

class RecordingSink final : public GenerationListener {
 public:
  void OnStarted(const std::vector<int32_t>& prompt) override {
    events.push_back("started " + std::to_string(prompt.size()));
  }
  void OnToken(const wire::SampledToken& token) override {
    events.push_back("token " + std::to_string(token.token()));
  }
  void OnEnd(absl::Status status, FinishReason, const GenerationUsage&) override {
    events.push_back("end " + std::string(status.message()));
  }
  std::vector<std::string> events;
};

wire::SampledToken Token(int32_t id) {
  wire::SampledToken token;
  token.set_token(id);
  return token;
}

TEST(GenerationCall, ReportsTheStartFirst) {
  const auto sink = std::make_shared<RecordingSink>();
  GenerationCall call(sink);
  const auto engine = std::make_shared<GenerationEngine>(GenerationEngineOptions{});
  call.OnToken(Token(1));
  call.OnToken(Token(2));
  EXPECT_TRUE(sink->events.empty());
  call.Start({7, 8, 9}, engine, 1);
  call.OnToken(Token(3));
  call.OnEnd(absl::OkStatus(), FinishReason::kLength, {});
  EXPECT_THAT(sink->events, ElementsAre("started 3", "token 1", "token 2", "token 3", "end "));
}

TEST(GenerationCall, AGenerationThatEndsBeforeItsStartIsReportedInOrder) {
  const auto sink = std::make_shared<RecordingSink>();
  GenerationCall call(sink);
  const auto engine = std::make_shared<GenerationEngine>(GenerationEngineOptions{});
  call.OnToken(Token(1));
  call.OnEnd(absl::OkStatus(), FinishReason::kLength, {});
  call.Start({7}, engine, 1);
  EXPECT_THAT(sink->events, ElementsAre("started 1", "token 1", "end "));
}

TEST(GenerationCall, ARefusedRequestNeverStarts) {
  const auto sink = std::make_shared<RecordingSink>();
  GenerationCall call(sink);
  call.Cancel();
  call.Refuse(absl::UnavailableError("later"));
  EXPECT_THAT(sink->events, ElementsAre("end later"));
}

TEST(GenerationCall, ACancelBeforeTheStartIsReported) {
  const auto sink = std::make_shared<RecordingSink>();
  int unwanted = 0;
  GenerationCall call(sink);
  call.OnUnwanted([&] { ++unwanted; });
  EXPECT_TRUE(call.wanted());
  call.Finish();
  call.Cancel();
  EXPECT_FALSE(call.wanted());
  EXPECT_EQ(unwanted, 1);
  GenerationCall late(sink);
  late.Cancel();
  late.OnUnwanted([&] { ++unwanted; });
  EXPECT_EQ(unwanted, 2);
}

TEST(GenerationCall, ACancelAfterTheStartOrRefusalIsNotReported) {
  const auto sink = std::make_shared<RecordingSink>();
  const auto engine = std::make_shared<GenerationEngine>(GenerationEngineOptions{});
  int unwanted = 0;
  GenerationCall started(sink);
  started.OnUnwanted([&] { ++unwanted; });
  started.Start({1}, engine, 1);
  started.Cancel();
  GenerationCall refused(sink);
  refused.Refuse(absl::UnavailableError("later"));
  refused.Cancel();
  refused.OnUnwanted([&] { ++unwanted; });
  EXPECT_EQ(unwanted, 0);
}

// A sink that cancels from inside its own call.
TEST(GenerationCall, MayBeCancelledFromItsSink) {
  class Impatient final : public GenerationListener {
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
  const auto sink = std::make_shared<Impatient>();
  GenerationCall call(sink);
  sink->call = &call;
  const auto engine = std::make_shared<GenerationEngine>(GenerationEngineOptions{});
  call.Start({1}, engine, 1);
  call.OnToken(Token(1));
  call.OnEnd(absl::CancelledError(""), FinishReason::kCancelled, {});
  EXPECT_EQ(sink->tokens, 1);
  EXPECT_TRUE(sink->ended);
}

}  // namespace
}  // namespace strata
