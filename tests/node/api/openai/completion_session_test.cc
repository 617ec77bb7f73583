// A completion request, with a source whose output a test chooses.
#include "node/api/openai/completion_session.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using ::testing::HasSubstr;

class RecordingResponder final : public HttpResponder {
 public:
  void Answer(HttpResponse response) override { body = std::move(response.body); }
  void Begin(HttpResponse head) override { body = std::move(head.body); }
  void Write(absl::string_view bytes) override { body += bytes; }
  void End() override {}
  void OnGone(absl::AnyInvocable<void() &&>) override {}
  void Run(absl::AnyInvocable<void() &&> fn) override { std::move(fn)(); }

  std::string body;
};

class Control final : public GenerationHandle {
 public:
  void Cancel() override { ++cancelled; }
  void Finish() override { ++finished; }

  int cancelled = 0, finished = 0;
};

// Emits its output before the caller has the control, as a cached prompt may.
class EarlySource final : public GenerationSource {
 public:
  explicit EarlySource(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}

  std::shared_ptr<GenerationHandle> Generate(const wire::GenerateRequest&,
                                             std::shared_ptr<GenerationListener> to,
                                             GenerateOptions) override {
    sink = std::move(to);
    sink->OnStarted({1, 2});
    for (const std::string& piece : pieces_) {
      wire::SampledToken token;
      token.set_piece(piece);
      sink->OnToken(token);
    }
    return control;
  }

  const std::shared_ptr<Control> control = std::make_shared<Control>();
  std::shared_ptr<GenerationListener> sink;

 private:
  const std::vector<std::string> pieces_;
};

CompletionSession::Options OptionsWithStop(const std::string& stop) {
  CompletionSession::Options options;
  options.request.prompts = {{.text = "Hi"}};
  options.request.stops = {stop};
  options.record = std::make_shared<RequestRecord>(HttpRequest());
  options.tokens_max = 100;
  return options;
}

TEST(CompletionSession, AnImmediateStopStringEndsTheGeneration) {
  EarlySource source({"one", "\n", "two"});
  const auto responder = std::make_shared<RecordingResponder>();
  CompletionSession::Start(&source, OptionsWithStop("\n"), responder,
                           std::make_shared<ApiCounters>());
  EXPECT_EQ(source.control->finished, 1);
  source.sink->OnEnd(absl::OkStatus(), FinishReason::kEndOfGeneration, {});
  EXPECT_THAT(responder->body, HasSubstr("\"text\":\"one\""));
  EXPECT_THAT(responder->body, HasSubstr("\"finish_reason\":\"stop\""));
}

TEST(CompletionSession, TextOffsetsCountCharactersAlsoInAStream) {
  for (const bool stream : {false, true}) {
    EarlySource source({"\u2014", "ar", "\xF0\x9F", "\x98", "\x80", "\u00e9!"});
    CompletionSession::Options options = OptionsWithStop("END");
    options.request.stream = stream;
    options.request.logprobs = true;
    const auto responder = std::make_shared<RecordingResponder>();
    CompletionSession::Start(&source, std::move(options), responder,
                             std::make_shared<ApiCounters>());
    source.sink->OnEnd(absl::OkStatus(), FinishReason::kLength, {});
    std::vector<uint64_t> offsets;
    std::vector<std::string> events = {responder->body};
    if (stream) events = absl::StrSplit(responder->body, "\n\n");
    for (absl::string_view event : events) {
      absl::ConsumePrefix(&event, "data: ");
      const auto json = nlohmann::json::parse(event, nullptr, false);
      if (!json.is_object()) continue;
      const auto& logprobs = json["choices"][0]["logprobs"];
      for (const auto& offset : logprobs["text_offset"]) offsets.push_back(offset);
    }
    EXPECT_THAT(offsets, ::testing::ElementsAre(0, 1, 3, 3, 3, 4)) << stream;
  }
}

TEST(CompletionSession, TextOffsetsOfAnEchoCountItsPrompt) {
  EarlySource source({"a", "b"});
  CompletionSession::Options options = OptionsWithStop("END");
  options.request.prompts = {{.text = "\u00e4\u20ac"}};
  options.request.echo = options.request.logprobs = true;
  const auto responder = std::make_shared<RecordingResponder>();
  CompletionSession::Start(&source, std::move(options), responder, std::make_shared<ApiCounters>());
  source.sink->OnEnd(absl::OkStatus(), FinishReason::kLength, {});
  EXPECT_THAT(responder->body, HasSubstr("\"text_offset\":[2,3]"));
}

TEST(CompletionSession, ReportsTheStopTokenThatEndedTheGeneration) {
  EarlySource source({"one"});
  CompletionSession::Options options = OptionsWithStop("END");
  options.request.sampler.add_stop_tokens(7);
  const auto responder = std::make_shared<RecordingResponder>();
  CompletionSession::Start(&source, std::move(options), responder, std::make_shared<ApiCounters>());
  source.sink->OnEnd(absl::OkStatus(), FinishReason::kEndOfGeneration, {.end_token = 7});
  EXPECT_THAT(responder->body, HasSubstr("\"stop_reason\":7"));
}

TEST(CompletionSession, AGenerationWithoutItsStopStringIsLeftAlone) {
  EarlySource source({"one", "two"});
  const auto responder = std::make_shared<RecordingResponder>();
  CompletionSession::Start(&source, OptionsWithStop("\n"), responder,
                           std::make_shared<ApiCounters>());
  EXPECT_EQ(source.control->finished, 0);
  source.sink->OnEnd(absl::OkStatus(), FinishReason::kLength, {});
  EXPECT_EQ(source.control->cancelled, 0);
  EXPECT_THAT(responder->body, HasSubstr("\"text\":\"onetwo\""));
  EXPECT_THAT(responder->body, HasSubstr("\"finish_reason\":\"length\""));
}

TEST(CompletionSession, AWholeAnswerThatDoesNotMeetAStrictSchemaIsAnError) {
  const struct {
    const char* answer;
    FinishReason reason;
    bool is_error;
  } cases[] = {{"[1,1]", FinishReason::kEndOfGeneration, true},
               {"[1,2]", FinishReason::kEndOfGeneration, false},
               {"[1,1", FinishReason::kLength, false}};
  for (const auto& test : cases) {
    for (const bool stream : {false, true}) {
      EarlySource source(
          {std::string(test.answer).substr(0, 2), std::string(test.answer).substr(2)});
      CompletionSession::Options options = OptionsWithStop("END");
      options.request.stream = stream;
      options.request.answer_path = "json_schema";
      options.request.answer_schema = R"({"type":"array","uniqueItems":true})";
      options.request.checks_answer = true;
      const auto responder = std::make_shared<RecordingResponder>();
      CompletionSession::Start(&source, std::move(options), responder,
                               std::make_shared<ApiCounters>());
      source.sink->OnEnd(absl::OkStatus(), test.reason, {});
      const auto has = [&](const char* words) {
        return responder->body.find(words) != std::string::npos;
      };
      EXPECT_EQ(has("\"code\":\"schema_not_met\""), test.is_error) << responder->body;
      EXPECT_EQ(has("uniqueItems"), test.is_error) << responder->body;
      EXPECT_EQ(has("\"finish_reason\":\"stop\"") || has("\"finish_reason\":\"length\""),
                !test.is_error)
          << responder->body;
    }
  }
}

}  // namespace
}  // namespace strata
