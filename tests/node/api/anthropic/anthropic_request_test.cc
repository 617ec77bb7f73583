#include "node/api/anthropic/anthropic_request.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/api/anthropic/anthropic_error.h"
#include "node/api/anthropic/anthropic_messages.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Body(const std::string& fields) {
  return absl::StrCat(R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"}])",
                      fields, "}");
}
std::string Messages(const std::string& messages) {
  return absl::StrCat(R"({"model":"m","max_tokens":9,"messages":[)", messages, "]}");
}
std::string ParamOfError(const std::string& body) {
  const auto request = ParseAnthropicMessages(body);
  return request.ok() ? "none" : ParamOf(request.status());
}

TEST(AnthropicRequest, SaysWhatTheCachesMayDo) {
  const auto request = ParseAnthropicMessages(Body(R"(,"cache_prompt":false,"cache_salt":"s")"));
  ASSERT_THAT(request, IsOk());
  EXPECT_TRUE(request->no_cache);
  EXPECT_EQ(request->cache_salt, "s");
  EXPECT_EQ(ParamOfError(Body(R"(,"cache_salt":5)")), "cache_salt");
}

TEST(AnthropicRequest, ReadsEveryField) {
  const auto request = ParseAnthropicMessages(Body(
      R"(,"system":"Be brief.","stream":true,"temperature":0.5,"top_p":0.9,"top_k":40,
      "stop_sequences":["a","b"],"metadata":{"user_id":"u"},"service_tier":"auto",
      "context_management":{"edits":[]},"betas":["x"],"inference_geo":"eu","unknown":1)"));
  ASSERT_THAT(request, IsOk());
  EXPECT_TRUE(request->chat);
  EXPECT_TRUE(request->stream);
  EXPECT_EQ(request->model, "m");
  EXPECT_EQ(request->tokens_max, 9u);
  EXPECT_EQ(request->sampler.temperature(), 0.5f);
  EXPECT_EQ(request->sampler.top_k(), 40);
  EXPECT_THAT(request->stops, ElementsAre("a", "b"));
  ASSERT_EQ(request->messages.size(), 2u);
  EXPECT_EQ(request->messages[0].role, "system");
  EXPECT_EQ(request->messages[0].content, "Be brief.");
  EXPECT_FALSE(request->continues_last);
  EXPECT_FALSE(request->thought_tokens_max.has_value());
}

TEST(AnthropicRequest, PartsOfTextAreParagraphs) {
  const auto request = ParseAnthropicMessages(
      R"({"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=1; cch=12ab;"},
                    {"type":"text","text":"One.","cache_control":{"type":"ephemeral"}},
                    {"type":"text","text":"Two."}],
          "messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
                      {"role":"system","content":"Later."},
                      {"role":"user","content":[{"type":"text","text":"\ud83d"}]}]})");
  ASSERT_THAT(request, IsOk());
  ASSERT_EQ(request->messages.size(), 4u);
  EXPECT_EQ(request->messages[0].content, "One.\n\nTwo.");
  EXPECT_EQ(request->messages[1].content, "a\n\nb");
  EXPECT_EQ(request->messages[2].role, "system");
  EXPECT_EQ(request->messages[3].content, "\uFFFD");
}

TEST(AnthropicRequest, CallsAndResultsAreMessages) {
  const auto request = ParseAnthropicMessages(Messages(
      R"({"role":"user","content":"2+2?"},
         {"role":"assistant","content":[
           {"type":"thinking","thinking":"A sum.","signature":"s"},
           {"type":"redacted_thinking","data":"x"},
           {"type":"text","text":"I add."},
           {"type":"tool_use","id":"toolu_c1","name":"sum","input":{"b": 2, "a": [2, "]"]}},
           {"type":"tool_use","id":"c2","name":"now","input":{}}]},
         {"role":"user","content":[
           {"type":"tool_result","tool_use_id":"toolu_c1","content":[{"type":"text","text":"4"}]},
           {"type":"tool_result","tool_use_id":"c2","content":"no clock","is_error":true},
           {"type":"text","text":"Well?"}]})"));
  ASSERT_THAT(request, IsOk());
  ASSERT_EQ(request->messages.size(), 5u);
  const ChatMessage& assistant = request->messages[1];
  EXPECT_EQ(assistant.reasoning, "A sum.");
  EXPECT_EQ(assistant.content, "I add.");
  ASSERT_EQ(assistant.calls.size(), 2u);
  EXPECT_EQ(assistant.calls[0].id, "c1");
  EXPECT_EQ(assistant.calls[0].name, "sum");
  EXPECT_EQ(assistant.calls[0].arguments, R"({"b": 2, "a": [2, "]"]})");  // in its order
  EXPECT_EQ(assistant.calls[1].arguments, "{}");
  EXPECT_EQ(request->messages[2].role, "tool");
  EXPECT_EQ(request->messages[2].call_id, "c1");
  EXPECT_EQ(request->messages[2].content, "4");
  EXPECT_EQ(request->messages[3].content, "Error: no clock");
  EXPECT_EQ(request->messages[4].role, "user");
  EXPECT_EQ(request->messages[4].content, "Well?");
}

TEST(AnthropicRequest, TheAssistantsLastMessageIsGoneOnWith) {
  const std::string user = R"({"role":"user","content":"Hi"},)";
  const auto prefill = ParseAnthropicMessages(
      Messages(user + R"({"role":"assistant","content":[{"type":"text","text":"It was"}]})"));
  ASSERT_THAT(prefill, IsOk());
  EXPECT_TRUE(prefill->continues_last);
  const auto call = ParseAnthropicMessages(Messages(
      user +
      R"({"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]})"));
  ASSERT_THAT(call, IsOk());
  EXPECT_FALSE(call->continues_last);
}

TEST(AnthropicRequest, ReadsToolsAndTheirChoice) {
  const std::string tools =
      R"(,"tools":[{"name":"f","description":"d","input_schema":{"type":"object",
         "properties":{"b":{"type":"string"},"a":{"type":"string"}}},"strict":true,
         "cache_control":{"type":"ephemeral"}},{"type":"custom","name":"g","input_schema":{}}])";
  const auto any = ParseAnthropicMessages(
      Body(tools + R"(,"tool_choice":{"type":"any","disable_parallel_tool_use":true})"));
  ASSERT_THAT(any, IsOk());
  ASSERT_EQ(any->tools.list.size(), 2u);
  EXPECT_EQ(any->tools.choice, ChatTools::Choice::kRequired);
  EXPECT_FALSE(any->tools.parallel);
  const ChatTool& tool = any->tools.list[0];
  EXPECT_TRUE(tool.strict);
  EXPECT_EQ(tool.path, "tools.0.input_schema");
  EXPECT_EQ(tool.parameters,
            R"({"type":"object","properties":{"b":{"type":"string"},"a":{"type":"string"}}})");
  EXPECT_EQ(nlohmann::json::parse(tool.json)["function"]["name"], "f");

  const auto one =
      ParseAnthropicMessages(Body(tools + R"(,"tool_choice":{"type":"tool","name":"g"})"));
  ASSERT_THAT(one, IsOk());
  EXPECT_EQ(one->tools.only, "g");
  const auto none = ParseAnthropicMessages(Body(tools + R"(,"tool_choice":{"type":"none"})"));
  ASSERT_THAT(none, IsOk());
  EXPECT_FALSE(none->tools.offered());
}

TEST(AnthropicRequest, AnthropicsOwnToolsAreRefused) {
  const auto request = ParseAnthropicMessages(
      Body(R"(,"tools":[{"type":"web_search_20250305","name":"web_search","max_uses":8}])"));
  EXPECT_THAT(request, StatusIs(absl::StatusCode::kUnimplemented,
                                HasSubstr("tools.0.type web_search_20250305")));
}

TEST(AnthropicRequest, ThinkingHasABudgetOrIsOff) {
  const auto budget = ParseAnthropicMessages(
      Body(R"(,"thinking":{"type":"enabled","budget_tokens":2048,"display":"omitted"})"));
  ASSERT_THAT(budget, IsOk());
  EXPECT_EQ(budget->thought_tokens_max, 2048u);
  EXPECT_FALSE(budget->shows_thoughts);
  const auto off = ParseAnthropicMessages(Body(R"(,"thinking":{"type":"disabled"})"));
  ASSERT_THAT(off, IsOk());
  EXPECT_EQ(off->thought_tokens_max, 0u);
  const auto adaptive = ParseAnthropicMessages(
      Body(R"(,"thinking":{"type":"adaptive"},"output_config":{"effort":"high"})"));
  ASSERT_THAT(adaptive, IsOk());
  EXPECT_FALSE(adaptive->thought_tokens_max.has_value());
  EXPECT_THAT(adaptive->template_variables, HasSubstr(R"("reasoning_effort":"high")"));
}

TEST(AnthropicRequest, BothFormsOfAFormatConstrainTheAnswer) {
  const std::string format =
      R"({"type":"json_schema","schema":{"type":"object","properties":{"b":{},"a":{}}}})";
  for (const std::string& field : {absl::StrCat(R"(,"output_format":)", format),
                                   absl::StrCat(R"(,"output_config":{"format":)", format, "}")}) {
    const auto request = ParseAnthropicMessages(Body(field));
    ASSERT_THAT(request, IsOk()) << field;
    EXPECT_EQ(request->answer_schema, R"({"type":"object","properties":{"b":{},"a":{}}})");
    EXPECT_TRUE(request->answer_strict);
  }
  EXPECT_EQ(ParamOfError(Body(absl::StrCat(R"(,"output_format":)", format,
                                           R"(,"output_config":{"format":)", format, "}"))),
            "output_config.format.schema");
}

TEST(AnthropicRequest, ErrorsNameTheFieldByItsPath) {
  EXPECT_EQ(ParamOfError(R"({"max_tokens":1})"), "messages");
  EXPECT_EQ(ParamOfError(R"({"messages":[]})"), "messages");
  EXPECT_EQ(ParamOfError(Messages("1")), "messages.0.role");
  EXPECT_EQ(ParamOfError(Messages(R"({"role":"tool","content":"x"})")), "messages.0.role");
  EXPECT_EQ(ParamOfError(Messages(R"({"role":"user"})")), "messages.0.content");
  EXPECT_EQ(ParamOfError(Messages(R"({"role":"user","content":[{"type":"text"}]})")),
            "messages.0.content.0.text");
  EXPECT_EQ(ParamOfError(Messages(R"({"role":"user","content":[{"type":"image","source":{}}]})")),
            "messages.0.content.0");
  EXPECT_EQ(
      ParamOfError(Messages(
          R"({"role":"user","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]})")),
      "messages.0.content.0");
  EXPECT_EQ(
      ParamOfError(Messages(
          R"({"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":"{}"}]})")),
      "messages.0.content.0.input");
  EXPECT_EQ(ParamOfError(Messages(R"({"role":"user","content":[{"type":"tool_result"}]})")),
            "messages.0.content.0.tool_use_id");
  EXPECT_EQ(ParamOfError(Body(R"(,"system":[{"type":"image"}])")), "system.0");
  EXPECT_EQ(ParamOfError(Body(R"(,"tools":[{"name":"f","input_schema":1}])")),
            "tools.0.input_schema");
  EXPECT_EQ(ParamOfError(Body(R"(,"tools":[1])")), "tools.0");
  EXPECT_EQ(ParamOfError(Body(R"(,"tool_choice":"auto")")), "tool_choice.type");
  EXPECT_EQ(ParamOfError(Body(R"(,"tool_choice":{"type":"any"})")), "tool_choice");
  EXPECT_EQ(ParamOfError(Body(R"(,"stop_sequences":[1])")), "stop_sequences");
  EXPECT_EQ(ParamOfError(Body(R"(,"thinking":{"type":"x"})")), "thinking");
  EXPECT_EQ(ParamOfError(Body(R"(,"output_config":{"effort":"huge"})")), "output_config.effort");
  EXPECT_EQ(ParamOfError(Body(R"(,"output_config":{"format":{"type":"x"}})")),
            "output_config.format.type");
  EXPECT_EQ(ParamOfError(Body(R"(,"mcp_servers":[{"url":"x"}])")), "mcp_servers");
  EXPECT_EQ(ParamOfError(Body(R"(,"temperature":"warm")")), "temperature");
  EXPECT_EQ(ParamOfError("[]"), "");
}

TEST(AnthropicRequest, ErrorsHaveAnthropicsForm) {
  const nlohmann::json json = nlohmann::json::parse(
      AnthropicError({.http_status = 404, .message = "no model", .request_id = "r1"}));
  EXPECT_EQ(json, nlohmann::json::parse(
                      R"({"type":"error","error":{"type":"not_found_error","message":"no model"},
                          "request_id":"r1"})"));
  const auto type_of = [](int http_status) {
    return nlohmann::json::parse(AnthropicError({.http_status = http_status}))["error"]["type"];
  };
  EXPECT_EQ(type_of(400), "invalid_request_error");
  EXPECT_EQ(type_of(401), "authentication_error");
  EXPECT_EQ(type_of(429), "rate_limit_error");
  EXPECT_EQ(type_of(503), "overloaded_error");
  EXPECT_EQ(type_of(500), "api_error");
}

}  // namespace
}  // namespace strata
