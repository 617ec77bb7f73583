// A completion request, with a source whose output a test chooses.
#include "node/api/completion_session.h"

#include <algorithm>
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
#include "node/api/openai/openai_response.h"

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

  std::shared_ptr<GenerationHandle> Generate(const wire::GenerateRequest& request,
                                             std::shared_ptr<GenerationListener> to,
                                             GenerateOptions) override {
    requests.push_back(request);
    sink = sinks.emplace_back(std::move(to));
    sink->OnStarted({1, 2});
    for (const std::string& piece : requests.size() == 1 ? pieces_ : next_pieces) {
      wire::SampledToken token;
      token.set_piece(piece);
      sink->OnToken(token);
    }
    return control;
  }

  std::vector<wire::GenerateRequest> requests;
  std::vector<std::string> next_pieces;  // of the second generation

  const std::shared_ptr<Control> control = std::make_shared<Control>();
  std::shared_ptr<GenerationListener> sink;  // the last one
  std::vector<std::shared_ptr<GenerationListener>> sinks;

 private:
  const std::vector<std::string> pieces_;
};

CompletionSession::Options OptionsWithStop(const std::string& stop) {
  CompletionSession::Options options;
  options.writer = std::make_unique<OpenAiWriter>(ApiAnswer());
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

TEST(CompletionSession, PiecesHaveTheirTokensIfAsked) {
  for (const bool stream : {false, true}) {
    EarlySource source({"one", "two"});
    CompletionSession::Options options = OptionsWithStop("END");
    options.writer = std::make_unique<OpenAiWriter>(ApiAnswer{.returns_tokens = true});
    options.request.stream = stream;
    options.request.returns_tokens = true;
    const auto responder = std::make_shared<RecordingResponder>();
    CompletionSession::Start(&source, std::move(options), responder,
                             std::make_shared<ApiCounters>());
    source.sink->OnEnd(absl::OkStatus(), FinishReason::kLength, {});
    EXPECT_THAT(responder->body, HasSubstr("\"prompt_token_ids\":[1,2]"));
    EXPECT_THAT(responder->body, HasSubstr(stream ? "\"token_ids\":[0]" : "\"token_ids\":[0,0]"));
    EXPECT_THAT(responder->body, HasSubstr("\"logprobs\":null"));
  }
}

TEST(CompletionSession, AStreamHasItsPromptsProgress) {
  EarlySource source({});
  CompletionSession::Options options = OptionsWithStop("END");
  options.request.stream = options.request.with_progress = true;
  const auto responder = std::make_shared<RecordingResponder>();
  CompletionSession::Start(&source, std::move(options), responder, std::make_shared<ApiCounters>());
  ASSERT_EQ(source.requests.size(), 1u);
  EXPECT_TRUE(source.requests[0].with_progress());
  source.sink->OnProgress({.prompt_tokens = 2, .done_tokens = 1});
  EXPECT_THAT(responder->body, HasSubstr("\"processed\":1"));
  source.sink->OnEnd(absl::OkStatus(), FinishReason::kLength, {});
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

// One of them has fed the prompt, whichever it was.
TEST(CompletionSession, WhatChoicesTakeFromEachOtherIsNotCached) {
  EarlySource source({"one"});
  CompletionSession::Options options = OptionsWithStop("END");
  options.request.n = 2;
  const auto responder = std::make_shared<RecordingResponder>();
  CompletionSession::Start(&source, std::move(options), responder, std::make_shared<ApiCounters>());
  ASSERT_EQ(source.sinks.size(), 2u);
  source.sinks[0]->OnEnd(absl::OkStatus(), FinishReason::kLength, {.cached_tokens = 2});
  source.sinks[1]->OnEnd(absl::OkStatus(), FinishReason::kLength, {.cached_tokens = 1});
  EXPECT_THAT(responder->body, HasSubstr("\"cached_tokens\":1"));
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

CompletionSession::Options ChatOptions(const std::string& prompt) {
  CompletionSession::Options options = OptionsWithStop("END");
  options.request.chat = true;
  options.writer = std::make_unique<OpenAiWriter>(ApiAnswer{.chat = true});
  options.request.prompts = {{.text = prompt}};
  options.format = DecodeChatFormat("");
  options.format.thoughts.is_taught = true;
  return options;
}

struct Answered {
  nlohmann::json message, usage;
  std::string finish_reason;
};
// Of a whole response or a stream, all events together.
Answered Read(const std::string& body, bool stream) {
  Answered read;
  read.message = {{"content", ""}, {"reasoning_content", ""}};
  std::vector<std::string> events = {body};
  if (stream) events = absl::StrSplit(body, "\n\n");
  for (absl::string_view event : events) {
    absl::ConsumePrefix(&event, "data: ");
    const auto json = nlohmann::json::parse(event, nullptr, false);
    if (!json.is_object() || json["choices"].empty()) continue;
    const auto& choice = json["choices"][0];
    if (choice["finish_reason"].is_string()) read.finish_reason = choice["finish_reason"];
    if (!stream) {
      read.message.update(choice["message"]);
      read.usage = json["usage"];
      continue;
    }
    for (const char* key : {"content", "reasoning_content"}) {
      const auto& delta = choice["delta"];
      if (!delta.contains(key)) continue;
      read.message[key] = read.message[key].get<std::string>() + delta[key].get<std::string>();
    }
    if (choice["delta"].contains("tool_calls")) {
      for (const auto& call : choice["delta"]["tool_calls"]) {
        if (call.contains("id")) {
          read.message["tool_calls"].push_back(call);
        } else {
          auto& arguments = read.message["tool_calls"].back()["function"]["arguments"];
          arguments =
              arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
        }
      }
    }
  }
  return read;
}

Answered Respond(EarlySource* source, CompletionSession::Options options, FinishReason reason) {
  const bool stream = options.request.stream;
  const auto responder = std::make_shared<RecordingResponder>();
  CompletionSession::Start(source, std::move(options), responder, std::make_shared<ApiCounters>());
  for (size_t ended = 0; ended < source->requests.size(); ++ended) {
    const auto sink = source->sink;
    sink->OnEnd(absl::OkStatus(), reason, {});
  }
  return Read(responder->body, stream);
}

TEST(CompletionSession, AThoughtIsToldApart) {
  for (const bool stream : {false, true}) {
    for (const char* prompt : {"<a><think>\n", "<a>"}) {
      std::vector<std::string> pieces = {"Hm,", " a greeting.", "\n</thi", "nk>\n\nHel", "lo!"};
      if (std::string(prompt) == "<a>") pieces.insert(pieces.begin(), {"<th", "ink>\n"});
      EarlySource source(pieces);
      CompletionSession::Options options = ChatOptions(prompt);
      options.request.stream = stream;
      const Answered read = Respond(&source, std::move(options), FinishReason::kEndOfGeneration);
      EXPECT_EQ(read.message["reasoning_content"], "Hm, a greeting.") << stream;
      EXPECT_EQ(read.message["content"], "Hello!") << stream;
      EXPECT_EQ(read.finish_reason, "stop");
      if (!stream) {
        EXPECT_GT(read.usage["completion_tokens_details"]["reasoning_tokens"], 2);
      }
    }
  }
}

TEST(CompletionSession, AThoughtStaysInTheContentWhereTheClientWantsIt) {
  EarlySource source({"<think>a</think>b"});
  CompletionSession::Options options = ChatOptions("<a>");
  options.request.splits_thoughts = false;
  const Answered read = Respond(&source, std::move(options), FinishReason::kEndOfGeneration);
  EXPECT_EQ(read.message["content"], "<think>a</think>b");
  EXPECT_EQ(read.message["reasoning_content"], "");
}

TEST(CompletionSession, AThoughtWhoseBudgetIsUsedIsEnded) {
  for (const bool stream : {false, true}) {
    EarlySource source({"One", " two", " three", " four"});
    source.next_pieces = {"Hello!"};
    CompletionSession::Options options = ChatOptions("<a><think>\n");
    options.request.stream = stream;
    options.request.thought_tokens_max = 2;
    const Answered read = Respond(&source, std::move(options), FinishReason::kEndOfGeneration);
    ASSERT_EQ(source.requests.size(), 2u);
    EXPECT_EQ(source.control->finished, 1);
    EXPECT_EQ(source.requests[1].prompt(), "<a><think>\nOne two\n</think>\n\n");
    EXPECT_EQ(source.requests[1].tokens_max(), 98u);
    EXPECT_EQ(read.message["reasoning_content"], "One two") << stream;
    EXPECT_EQ(read.message["content"], "Hello!") << stream;
  }
}

TEST(CompletionSession, AGrammarIsThatOfTheAnswerBehindTheThought) {
  EarlySource source({"Hm.", "\n</think>", "\n\nno JSON"});
  source.next_pieces = {"{\"a\":", "1}"};
  CompletionSession::Options options = ChatOptions("<a><think>\n");
  options.request.sampler.set_grammar("root ::= \"x\"");
  options.request.constrains_answer = true;
  const Answered read = Respond(&source, std::move(options), FinishReason::kEndOfGeneration);
  ASSERT_EQ(source.requests.size(), 2u);
  EXPECT_EQ(source.requests[0].sampler().grammar(), "");
  EXPECT_EQ(source.requests[1].sampler().grammar(), "root ::= \"x\"");
  EXPECT_EQ(source.requests[1].prompt(), "<a><think>\nHm.\n</think>\n\n");
  EXPECT_EQ(read.message["reasoning_content"], "Hm.");
  EXPECT_EQ(read.message["content"], "{\"a\":1}");
}

TEST(CompletionSession, AModelThatDoesNotThinkStartsAgainWithTheGrammar) {
  EarlySource source({"Well", " then"});
  source.next_pieces = {"{}"};
  CompletionSession::Options options = ChatOptions("<a>");
  options.request.sampler.set_grammar("root ::= \"{}\"");
  options.request.constrains_answer = true;
  const Answered read = Respond(&source, std::move(options), FinishReason::kEndOfGeneration);
  ASSERT_EQ(source.requests.size(), 2u);
  EXPECT_EQ(source.requests[1].prompt(), "<a>");
  EXPECT_EQ(read.message["content"], "{}");
}

TEST(CompletionSession, APromptThatHasEndedTheThoughtHasTheGrammarAtOnce) {
  EarlySource source({"{}"});
  CompletionSession::Options options = ChatOptions("<a><think>\n\n</think>\n\n");
  options.request.sampler.set_grammar("root ::= \"{}\"");
  options.request.constrains_answer = true;
  Respond(&source, std::move(options), FinishReason::kEndOfGeneration);
  ASSERT_EQ(source.requests.size(), 1u);
  EXPECT_EQ(source.requests[0].sampler().grammar(), "root ::= \"{}\"");
}

TEST(CompletionSession, ACallBehindAThoughtIsACall) {
  for (const bool stream : {false, true}) {
    EarlySource source({"Hm.</think>", "<tool_call>\n<function=f>\n<parameter=a>\nRo", "me\n",
                        "</parameter>\n</function>\n</tool_call>"});
    CompletionSession::Options options = ChatOptions("<a><think>\n");
    options.request.stream = stream;
    options.request.tools.list = {{.name = "f", .json = "{}", .parameters = ""}};
    const Answered read = Respond(&source, std::move(options), FinishReason::kEndOfGeneration);
    EXPECT_EQ(read.finish_reason, "tool_calls");
    ASSERT_EQ(read.message["tool_calls"].size(), 1u);
    EXPECT_EQ(read.message["tool_calls"][0]["function"]["name"], "f");
    EXPECT_EQ(read.message["tool_calls"][0]["function"]["arguments"], R"({"a": "Rome"})");
    EXPECT_EQ(read.message["reasoning_content"], "Hm.");
  }
}

TEST(CompletionSession, NumberedCallsHaveTheNameInTheirIds) {
  EarlySource source({"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"});
  CompletionSession::Options options = ChatOptions("<a>");
  options.format.calls.number_mark = ":";
  options.calls_before = 2;
  options.request.tools.list = {{.name = "f", .json = "{}", .parameters = ""}};
  const Answered read = Respond(&source, std::move(options), FinishReason::kEndOfGeneration);
  ASSERT_EQ(read.message["tool_calls"].size(), 1u) << read.message;
  EXPECT_EQ(read.message["tool_calls"][0]["id"], "functions.f:2");
}

TEST(CompletionSession, ACallThatIsCutIsNoContent) {
  for (const bool stream : {false, true}) {
    EarlySource source({"<tool_call>\n{\"na", "me\": \"f\","});
    CompletionSession::Options options = ChatOptions("<a>");
    options.request.stream = stream;
    options.request.tools.list = {{.name = "f", .json = "{}", .parameters = ""}};
    const Answered read = Respond(&source, std::move(options), FinishReason::kLength);
    EXPECT_EQ(read.finish_reason, "length");
    EXPECT_EQ(read.message["content"], "");
    EXPECT_FALSE(read.message.contains("tool_calls"));
  }
}

TEST(CompletionSession, MarksThatMayBeControlTokensAreAskedFor) {
  EarlySource source({"Hi"});
  Respond(&source, ChatOptions("<a>"), FinishReason::kEndOfGeneration);
  const auto& marks = source.requests[0].sampler().shown_marks();
  EXPECT_NE(std::find(marks.begin(), marks.end(), "</think>"), marks.end());
}

}  // namespace
}  // namespace strata
