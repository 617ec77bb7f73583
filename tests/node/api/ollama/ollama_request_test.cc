#include "node/api/ollama/ollama_request.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

Json Hi() { return Json::array({{{"role", "user"}, {"content", "Hi"}}}); }

absl::StatusOr<OllamaRequest> Chat(const Json& fields) {
  Json body = {{"model", "m"}, {"messages", Hi()}};
  body.update(fields);
  return ParseOllamaChat(body.dump());
}
absl::StatusOr<OllamaRequest> Generate(const Json& fields) {
  Json body = {{"model", "m"}, {"prompt", "Hi"}};
  body.update(fields);
  return ParseOllamaGenerate(body.dump());
}

TEST(OllamaRequest, HasOllamasDefaults) {
  const auto chat = Chat({{"options", {{"top_p", nullptr}}}});
  ASSERT_THAT(chat, IsOk());
  const ApiRequest& request = chat->request;
  EXPECT_TRUE(request.chat && request.stream && !chat->only_loads);
  EXPECT_FALSE(request.tokens_max.has_value());
  EXPECT_FLOAT_EQ(request.sampler.temperature(), 0.8f);
  EXPECT_EQ(request.sampler.top_k(), 40);
  EXPECT_FLOAT_EQ(request.sampler.top_p(), 0.9f);
  EXPECT_FLOAT_EQ(request.sampler.penalty_repeat(), 1.1f);
  EXPECT_EQ(request.sampler.penalty_last_n(), 64);
}

TEST(OllamaRequest, OptionsAreKept) {
  const auto chat = Chat({{"stream", false},
                          {"options",
                           {{"temperature", 0},
                            {"top_k", 3},
                            {"min_p", 0.25},
                            {"seed", 7},
                            {"num_predict", 9},
                            {"num_ctx", 4096},
                            {"stop", {"a", "b"}},
                            {"nobody_knows_this", "x"}}}});
  ASSERT_THAT(chat, IsOk());
  EXPECT_FALSE(chat->request.stream);
  EXPECT_EQ(chat->request.sampler.temperature(), 0);
  EXPECT_EQ(chat->request.sampler.top_k(), 3);
  EXPECT_EQ(chat->request.sampler.min_p(), 0.25f);
  EXPECT_EQ(chat->request.sampler.seed(), 7u);
  EXPECT_EQ(chat->request.tokens_max, 9u);
  EXPECT_THAT(chat->request.stops, ElementsAre("a", "b"));
  for (const int unlimited : {-2, -1, 0}) {
    EXPECT_FALSE(Chat({{"options", {{"num_predict", unlimited}}}})->request.tokens_max.has_value());
  }
}

TEST(OllamaRequest, AWrongOptionIsNamed) {
  for (const auto& [name, value] : {std::pair<const char*, Json>("temperature", "0.7"),
                                    {"top_k", 1.5},
                                    {"num_predict", "x"},
                                    {"num_ctx", "8k"},
                                    {"stop", 5},
                                    {"seed", "x"},
                                    {"use_mmap", 1}}) {
    const auto chat = Chat({{"options", {{name, value}}}});
    EXPECT_THAT(chat, StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr(std::string("options.") + name)));
    EXPECT_EQ(ParamOf(chat.status()), std::string("options.") + name);
  }
  EXPECT_THAT(Chat({{"options", 5}}), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(OllamaRequest, TheHistoryOfACallIsRead) {
  const Json call = {{"function", {{"name", "weather"}, {"arguments", {{"city", "Rome"}}}}}};
  const auto chat =
      Chat({{"messages",
             {{{"role", "system"}, {"content", "Be brief."}},
              {{"role", "user"}, {"content", "Rome?"}},
              {{"role", "assistant"}, {"content", ""}, {"thinking", "Hm"}, {"tool_calls", {call}}},
              {{"role", "tool"}, {"tool_name", "weather"}, {"content", "sun"}}}}});
  ASSERT_THAT(chat, IsOk());
  const std::vector<ChatMessage>& messages = chat->request.messages;
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[2].reasoning, "Hm");
  ASSERT_EQ(messages[2].calls.size(), 1u);
  EXPECT_EQ(messages[2].calls[0].arguments, R"({"city":"Rome"})");
  EXPECT_EQ(messages[3].name, "weather");
  EXPECT_EQ(messages[3].call_id, messages[2].calls[0].id);
}

TEST(OllamaRequest, WhatItCannotKeepIsRefusedByName) {
  const Json image = {{"role", "user"}, {"content", "?"}, {"images", {"AAAA"}}};
  EXPECT_THAT(Chat({{"messages", {image}}}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("messages[0].images")));
  EXPECT_THAT(Chat({{"messages", {{{"role", "user"}, {"content", 5}}}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("messages[0].content")));
  EXPECT_THAT(Chat({{"messages", {{{"role", "wizard"}, {"content", ""}}}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("messages[0].role")));
  EXPECT_THAT(Chat({{"stream", "yes"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stream")));
  EXPECT_THAT(Chat({{"logprobs", true}}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("logprobs")));
  EXPECT_THAT(Generate({{"context", {1, 2}}}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("/api/chat")));
  EXPECT_THAT(Generate({{"images", {"AAAA"}}}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("images")));
  EXPECT_THAT(Generate({{"images", Json::array()}, {"context", Json::array()}, {"suffix", ""}}),
              IsOk());
}

TEST(OllamaRequest, ASuffixMakesAPlainCompletion) {
  const auto parsed = Generate({{"prompt", "f("}, {"suffix", ")"}});
  ASSERT_THAT(parsed, IsOk());
  EXPECT_FALSE(parsed->request.chat);
  EXPECT_EQ(parsed->request.infill->suffix, ")");
  EXPECT_FALSE(Generate({{"prompt", ""}, {"suffix", ")"}})->only_loads);
}

TEST(OllamaRequest, FormatIsJsonOrASchema) {
  EXPECT_EQ(Chat({{"format", "json"}})->request.answer_schema, R"({"type":"object"})");
  const auto schema =
      ParseOllamaChat(R"({"messages":[],"format":{"type":"object","properties":{"b":{},"a":{}}}})");
  ASSERT_THAT(schema, IsOk());
  EXPECT_EQ(schema->request.answer_schema,
            R"({"type":"object","properties":{"b":{},"a":{}}})");  // in its order
  EXPECT_EQ(Chat({{"format", ""}})->request.answer_schema, "");
  EXPECT_THAT(Chat({{"format", "xml"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("format")));
}

TEST(OllamaRequest, ThinkIsASwitchOrAnEffort) {
  EXPECT_EQ(Chat({{"think", false}})->request.thought_tokens_max, 0u);
  EXPECT_FALSE(Chat({{"think", true}})->request.thought_tokens_max.has_value());
  EXPECT_THAT(Chat({{"think", "high"}})->request.template_variables, HasSubstr("high"));
  EXPECT_THAT(Chat({{"think", 5}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("think")));
}

TEST(OllamaRequest, KeepAliveIsATime) {
  const auto keep_alive_ms = [](const Json& value) {
    return Chat({{"keep_alive", value}})->request.keep_alive_ms;
  };
  EXPECT_EQ(keep_alive_ms("5m"), 300'000);
  EXPECT_EQ(keep_alive_ms("1h30m"), 5'400'000);
  EXPECT_EQ(keep_alive_ms(2.5), 2'500);
  EXPECT_EQ(keep_alive_ms("30"), 30'000);
  for (const Json& forever : {Json(-1), Json("-1"), Json("-5m")}) {
    EXPECT_EQ(keep_alive_ms(forever), 0) << forever;
  }
  EXPECT_EQ(keep_alive_ms(0), 1);  // as short as it can be said
  EXPECT_EQ(keep_alive_ms(Json()), std::nullopt);
  for (const Json& value : {Json("soon"), Json(true), Json::array()}) {
    EXPECT_THAT(Chat({{"keep_alive", value}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("keep_alive")));
  }
}

TEST(OllamaRequest, WithoutAPromptItOnlyLoads) {
  EXPECT_TRUE(Chat({{"messages", Json::array()}})->only_loads);
  EXPECT_TRUE(ParseOllamaChat(R"({"model":"m"})")->only_loads);
  EXPECT_TRUE(Generate({{"prompt", ""}})->only_loads);
  EXPECT_FALSE(Generate({{"prompt", ""}})->unloads);
  EXPECT_TRUE(Generate({{"prompt", ""}, {"keep_alive", 0}})->unloads);
  EXPECT_FALSE(Generate({{"keep_alive", 0}})->unloads);
}

TEST(OllamaRequest, AGeneratedPromptIsAChatUnlessItIsRaw) {
  const auto chat = Generate({{"system", "Be brief."}});
  ASSERT_THAT(chat, IsOk());
  EXPECT_TRUE(chat->request.chat);
  ASSERT_EQ(chat->request.messages.size(), 2u);
  EXPECT_EQ(chat->request.messages[0].role, "system");
  EXPECT_EQ(chat->request.messages[1].content, "Hi");
  const ApiRequest plain = AsCompletion(chat->request);
  EXPECT_FALSE(plain.chat);
  ASSERT_EQ(plain.prompts.size(), 1u);
  EXPECT_EQ(plain.prompts[0].text, "Be brief.\n\nHi");

  const auto raw = Generate({{"raw", true}, {"system", "not read"}});
  ASSERT_THAT(raw, IsOk());
  EXPECT_FALSE(raw->request.chat);
  EXPECT_EQ(raw->request.prompts[0].text, "Hi");
}

TEST(OllamaRequest, AModelIsNamedByEitherField) {
  EXPECT_EQ(ParseOllamaModel(R"({"model":"a"})")->model, "a");
  EXPECT_EQ(ParseOllamaModel(R"({"name":"b","stream":false})")->model, "b");
  EXPECT_THAT(ParseOllamaModel("{}"), Not(IsOk()));
  EXPECT_THAT(ParseOllamaModel("[]"), Not(IsOk()));
}

}  // namespace
}  // namespace strata
