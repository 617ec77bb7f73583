#include "node/api/openai/openai_response.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using Json = nlohmann::json;

Json EventOf(absl::string_view event) {
  EXPECT_TRUE(absl::ConsumePrefix(&event, "data: "));
  EXPECT_TRUE(absl::ConsumeSuffix(&event, "\n\n"));
  EXPECT_FALSE(absl::StrContains(event, '\n'));
  return Json::parse(event);
}

wire::SampledToken Token(const std::string& piece, float logprob) {
  wire::SampledToken token;
  token.set_piece(piece);
  token.set_logprob(logprob);
  wire::TokenLogprob* top = token.add_top();
  top->set_piece(piece);
  top->set_logprob(logprob);
  return token;
}

const ApiAnswer kChat = {.chat = true, .id = "chatcmpl-1", .created_s = 7, .model = "m"};
const ApiAnswer kChatWithUsage = {.chat = true,
                                  .id = "chatcmpl-1",
                                  .created_s = 7,
                                  .model = "m",
                                  .usage = ApiAnswer::Usage::kAtEnd};
const ApiAnswer kCompletion = {.chat = false, .id = "cmpl-1", .created_s = 7, .model = "m"};

TEST(OpenAiResponse, TheFirstPieceOfAChatHasTheRole) {
  const Json first = EventOf(PieceEvent(kChat, {.first = true, .text = ""}));
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"], Json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_TRUE(first["choices"][0]["finish_reason"].is_null());
  EXPECT_FALSE(first.contains("usage"));
  const Json last =
      EventOf(PieceEvent(kChatWithUsage, {.index = 1, .text = "", .finish_reason = "stop"}));
  EXPECT_EQ(last["choices"][0]["delta"], Json::object());
  EXPECT_EQ(last["choices"][0]["index"], 1);
  EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(last["usage"].is_null());
}

TEST(OpenAiResponse, UsageComesWithoutChoices) {
  const Json usage =
      EventOf(UsageEvent(kChat, {.prompt_tokens = 5, .cached_tokens = 2, .completion_tokens = 3}));
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_EQ(usage["usage"]["total_tokens"], 8);
  EXPECT_EQ(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
}

TEST(OpenAiResponse, PiecesHaveTheUsageSoFarIfAsked) {
  ApiAnswer answer = kChat;
  answer.usage = ApiAnswer::Usage::kInPieces;
  const Json piece = EventOf(
      PieceEvent(answer, {.text = "x", .usage = {.prompt_tokens = 5, .completion_tokens = 3}}));
  EXPECT_EQ(piece["usage"]["total_tokens"], 8);
  EXPECT_EQ(piece["choices"].size(), 1u);
}

TEST(OpenAiResponse, TellsTimesAsLlamaCpp) {
  const Json usage = EventOf(UsageEvent(kChat, {.prompt_tokens = 5,
                                                .cached_tokens = 1,
                                                .completion_tokens = 3,
                                                .first_token = absl::Milliseconds(2),
                                                .total = absl::Milliseconds(8)}));
  const Json& timings = usage["timings"];
  EXPECT_EQ(timings["cache_n"], 1);
  EXPECT_EQ(timings["prompt_n"], 4);
  EXPECT_EQ(timings["prompt_ms"], 2.0);
  EXPECT_EQ(timings["prompt_per_second"], 2000.0);
  EXPECT_EQ(timings["predicted_n"], 3);
  EXPECT_EQ(timings["predicted_ms"], 6.0);
  EXPECT_EQ(timings["predicted_per_token_ms"], 2.0);
  EXPECT_NE(usage["system_fingerprint"], "");
  // Nothing was generated in no time.
  EXPECT_EQ(EventOf(UsageEvent(kChat, {}))["timings"]["predicted_per_second"], 0.0);
}

// Two tokens at one place, the first the one that was chosen or stands there.
template <typename Place>
void AddTop(Place* place) {
  for (const int32_t id : {7, 9}) {
    wire::TokenLogprob* top = place->add_top();
    top->set_token(id);
    top->set_piece(absl::StrCat("t", id));
    top->set_logprob(-static_cast<float>(id));
  }
}

TEST(OpenAiResponse, TellsTokensAsVllm) {
  wire::SampledToken token;
  token.set_token(7);
  token.set_piece("t7");
  AddTop(&token);
  wire::PromptToken first, second;
  first.mutable_token()->set_token(1);
  second.mutable_token()->set_token(5);
  second.mutable_token()->set_piece("t5");
  second.mutable_token()->set_logprob(-20);
  AddTop(&second);
  const ApiPiece piece = {.first = true,
                          .text = "t7",
                          .logprobs = true,
                          .tokens = {token},
                          .text_offsets = {0},
                          .prompt_tokens = {1, 5},
                          .prompt_scores = {first, second}};
  for (ApiAnswer answer : {kChat, kCompletion}) {
    answer.top_logprobs = 1;
    answer.prompt_top = 2;
    answer.returns_tokens = answer.tokens_as_ids = true;
    const Json whole = Json::parse(WholeResponse(answer, {piece}, {}));
    const Json& choice = whole["choices"][0];
    const Json& with_prompt = answer.chat ? whole : choice;
    EXPECT_EQ(choice["token_ids"], Json::array({7}));
    EXPECT_EQ(with_prompt["prompt_token_ids"], Json::array({1, 5}));
    const Json& prompt = with_prompt["prompt_logprobs"];
    ASSERT_EQ(prompt.size(), 2u);
    EXPECT_TRUE(prompt[0].is_null());
    EXPECT_EQ(prompt[1]["9"], Json({{"logprob", -9.0}, {"rank", 2}, {"decoded_token", "t9"}}));
    EXPECT_TRUE(prompt[1]["5"]["rank"].is_null());
    const Json& logprobs = choice["logprobs"];
    if (answer.chat) {
      EXPECT_EQ(logprobs["content"][0]["token"], "token_id:7");
      EXPECT_EQ(logprobs["content"][0]["top_logprobs"].size(), 1u);
    } else {
      EXPECT_EQ(logprobs["tokens"], Json::array({"token_id:7"}));
      EXPECT_EQ(logprobs["top_logprobs"][0].size(), 1u);
    }
    OpenAiWriter writer(answer);
    const std::string head = writer.Begin({{.first = true, .prompt_tokens = {1, 5}}}, {}).body;
    const Json begun = EventOf(head);
    EXPECT_EQ((answer.chat ? begun : begun["choices"][0])["prompt_token_ids"], Json::array({1, 5}));
    EXPECT_FALSE(absl::StrContains(PieceEvent(answer, {.text = "x"}), "prompt_token_ids"));
  }
}

TEST(OpenAiResponse, TellsProgressAndTimesInAStream) {
  ApiAnswer answer = kChat;
  answer.timings_in_pieces = true;
  OpenAiWriter writer(answer);
  const Json progress =
      EventOf(writer.Progress({.prompt = {.prompt_tokens = 9, .cached_tokens = 2, .done_tokens = 5},
                               .time = absl::Milliseconds(3)}));
  EXPECT_EQ(progress["prompt_progress"],
            Json({{"total", 9}, {"cache", 2}, {"processed", 5}, {"time_ms", 3}}));
  EXPECT_EQ(progress["choices"][0]["delta"], Json::object());
  const ApiPiece piece = {.text = "x", .usage = {.completion_tokens = 3}};
  EXPECT_EQ(EventOf(PieceEvent(answer, piece))["timings"]["predicted_n"], 3);
}

TEST(OpenAiResponse, OldFunctionsAreCalledInTheirForm) {
  ApiAnswer answer = kChat;
  answer.calls_functions = true;
  const ApiPiece call = {.text = "",
                         .finish_reason = "tool_calls",
                         .calls = {{.id = "a", .name = "f", .arguments = "{}"}}};
  const Json function = {{"name", "f"}, {"arguments", "{}"}};
  const Json whole = Json::parse(WholeResponse(answer, {call}, {}))["choices"][0];
  EXPECT_EQ(whole["finish_reason"], "function_call");
  EXPECT_EQ(whole["message"]["function_call"], function);
  EXPECT_TRUE(whole["message"]["content"].is_null());
  EXPECT_FALSE(whole["message"].contains("tool_calls"));
  const Json delta = EventOf(PieceEvent(answer, call))["choices"][0];
  EXPECT_EQ(delta["finish_reason"], "function_call");
  EXPECT_EQ(delta["delta"]["function_call"], function);
  const Json rest = EventOf(PieceEvent(answer, {.calls = {{.arguments = "{"}}}));
  EXPECT_EQ(rest["choices"][0]["delta"]["function_call"], Json({{"arguments", "{"}}));
}

TEST(OpenAiResponse, InvalidUtf8IsReplaced) {
  const Json piece = EventOf(PieceEvent(kCompletion, {.text = "a\xFF\n"}));
  EXPECT_EQ(piece["choices"][0]["text"], "a\uFFFD\n");
}

TEST(OpenAiResponse, LogprobsComeInBothForms) {
  ApiPiece piece = {.text = "ab\xC3", .finish_reason = "length", .logprobs = true};
  piece.tokens = {Token("a", -0.5f), Token("b\xC3", -1.0f)};
  const Json chat = Json::parse(WholeResponse(kChat, {piece}, {}));
  const Json& content = chat["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[1]["bytes"], Json::array({98, 195}));
  EXPECT_EQ(content[0]["top_logprobs"][0]["logprob"], -0.5);
  piece.text_offsets = {10, 11};
  const Json completion = Json::parse(WholeResponse(kCompletion, {piece}, {}));
  const Json& logprobs = completion["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["token_logprobs"], Json::array({-0.5, -1.0}));
  EXPECT_EQ(logprobs["text_offset"], Json::array({10, 11}));
  EXPECT_EQ(logprobs["top_logprobs"][1].begin().key(), "b\uFFFD");
}

TEST(OpenAiResponse, TopLogprobsOfACompletionHaveTheTokenTaken) {
  ApiPiece piece = {.text = "xy", .logprobs = true};
  piece.tokens = {Token("a", -0.5f), Token("\xC3", -0.25f)};
  piece.tokens[0].set_piece("x");  // not one of the likeliest
  piece.tokens[0].set_logprob(-9.0f);
  piece.tokens[1].set_piece("\xE2");  // reads like one of these
  piece.tokens[1].set_logprob(-7.0f);
  piece.tokens.push_back(Token("z", -1.0f));
  piece.tokens[2].clear_top();  // "logprobs": 0
  piece.text_offsets = {0, 1, 2};
  const Json whole = Json::parse(WholeResponse(kCompletion, {piece}, {}));
  const Json& top = whole["choices"][0]["logprobs"]["top_logprobs"];
  EXPECT_EQ(top[0], Json({{"a", -0.5}, {"x", -9.0}}));
  EXPECT_EQ(top[1], Json::object({{"\uFFFD", -7.0}}));
  EXPECT_EQ(top[2], Json::object({{"z", -1.0}}));
}

TEST(OpenAiResponse, HasTheStopReason) {
  const auto reason = [](ApiPiece piece) {
    return Json::parse(
        WholeResponse(kCompletion, {std::move(piece)}, {}))["choices"][0]["stop_reason"];
  };
  EXPECT_EQ(reason({.text = "", .finish_reason = "stop", .stop_string = "END"}), "END");
  EXPECT_EQ(reason({.text = "", .finish_reason = "stop", .stop_token = 7}), 7);
  EXPECT_TRUE(reason({.text = "", .finish_reason = "stop"}).is_null());
}

TEST(OpenAiResponse, AWholeResponseHasAllChoices) {
  const Json chat =
      Json::parse(WholeResponse(kChat,
                                {{.index = 0, .text = "x", .finish_reason = "stop"},
                                 {.index = 1, .text = "y", .finish_reason = "length"}},
                                {.prompt_tokens = 1, .completion_tokens = 2}));
  EXPECT_EQ(chat["object"], "chat.completion");
  EXPECT_EQ(chat["choices"][1]["message"]["content"], "y");
  EXPECT_TRUE(chat["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(chat["usage"]["completion_tokens"], 2);
}

TEST(OpenAiResponse, ListsModels) {
  wire::ModelStatus model;
  model.set_name("tiny");
  model.set_loaded_s_ago(10);
  model.set_n_ctx(4096);
  model.set_state(wire::ModelStatus::SERVING);
  const Json models = Json::parse(ModelsJson({model}, {ChatSupport()}, 100));
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["object"], "model");
  EXPECT_EQ(models["data"][0]["created"], 90);
  // By the names that clients of OpenRouter, vLLM and llama.cpp read.
  EXPECT_EQ(models["data"][0]["context_length"], 4096);
  EXPECT_EQ(models["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(models["data"][0]["meta"]["n_ctx"], 4096);
  EXPECT_EQ(models["data"][0]["strata"]["chat"], true);
  EXPECT_EQ(models["data"][0]["status"]["value"], "loaded");
}

TEST(OpenAiResponse, AModelThatIsNotLoadedHasNoContext) {
  wire::ModelStatus model;
  model.set_name("hf:org/tiny:Q4_0");
  const Json json = Json::parse(ModelJson(model, ChatSupport(), 100));
  EXPECT_EQ(json["id"], "hf:org/tiny:Q4_0");
  EXPECT_EQ(json["status"]["value"], "unloaded");
  EXPECT_FALSE(json.contains("context_length"));
}

TEST(OpenAiResponse, SaysWhyAModelTakesNoChats) {
  const ChatSupport broken = {.status = absl::InvalidArgumentError("it cannot be read")};
  wire::ModelStatus serving;
  serving.set_state(wire::ModelStatus::SERVING);
  const Json model = Json::parse(ModelJson(serving, broken, 100))["strata"];
  EXPECT_EQ(model["chat"], false);
  EXPECT_EQ(model["chat_problem"], "it cannot be read");
  EXPECT_FALSE(model.contains("tools"));
  EXPECT_EQ(Json::parse(ModelJson(serving, {.tools_in_words = true}, 100))["strata"]["tools"],
            "in words");
}

}  // namespace
}  // namespace strata
