#include "node/api/gemini/gemini_request.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/api/gemini/gemini_error.h"
#include "node/api/gemini/gemini_fields.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kHi[] = R"("contents":[{"role":"user","parts":[{"text":"Hi"}]}])";

std::string Body(const std::string& fields) { return absl::StrCat("{", kHi, fields, "}"); }
std::string ParamOfError(const std::string& fields) {
  return ParamOf(ParseGeminiGenerate(Body(fields)).status());
}

TEST(GeminiRequest, ReadsContents) {
  const auto request = ParseGeminiGenerate(R"({
    "system_instruction":{"parts":[{"text":"Be "},{"text":"short"}]},
    "contents":[
      {"parts":{"text":"Weather?"}},
      {"role":"model","parts":[{"text":"hm","thought":true},{"text":"I look."},
        {"functionCall":{"name":"weather","args":{"z":1,"a":2}},"thoughtSignature":"eA=="}]},
      {"role":"user","parts":[{"functionResponse":{"name":"weather","response":{"sky":"blue"}}},
        {"text":"And?"}]}]})");
  ASSERT_THAT(request, IsOk());
  EXPECT_TRUE(request->chat);
  const auto& messages = request->messages;
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_EQ(messages[0].content, "Be short");
  EXPECT_EQ(messages[1].content, "Weather?");
  EXPECT_EQ(messages[2].role, "assistant");
  EXPECT_EQ(messages[2].reasoning, "hm");
  EXPECT_EQ(messages[2].content, "I look.");
  ASSERT_EQ(messages[2].calls.size(), 1u);
  EXPECT_EQ(messages[2].calls[0].arguments, R"({"z":1,"a":2})");
  EXPECT_EQ(messages[3].role, "tool");
  EXPECT_EQ(messages[3].call_id, messages[2].calls[0].id);
  EXPECT_EQ(messages[3].content, R"({"sky":"blue"})");
  EXPECT_EQ(messages[4].role, "user");
  EXPECT_EQ(messages[4].content, "And?");
}

TEST(GeminiRequest, ReadsItsSettings) {
  const auto request = ParseGeminiGenerate(Body(R"(,"generationConfig":{"temperature":0.5,
    "topP":0.9,"top_k":7,"seed":3,"candidateCount":2,"maxOutputTokens":9,"stopSequences":["x"],
    "presencePenalty":1,"responseLogprobs":true,"logprobs":2,
    "thinkingConfig":{"includeThoughts":true,"thinkingBudget":5}},"safetySettings":[{}])"));
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->sampler.temperature(), 0.5f);
  EXPECT_EQ(request->sampler.top_p(), 0.9f);
  EXPECT_EQ(request->sampler.top_k(), 7);
  EXPECT_EQ(request->sampler.seed(), 3u);
  EXPECT_EQ(request->sampler.penalty_presence(), 1.0f);
  EXPECT_EQ(request->sampler.logprobs(), 2u);
  EXPECT_EQ(request->n, 2u);
  EXPECT_EQ(request->tokens_max, 9u);
  EXPECT_THAT(request->stops, ElementsAre("x"));
  EXPECT_TRUE(request->logprobs);
  EXPECT_TRUE(request->shows_thoughts);
  EXPECT_EQ(request->thought_tokens_max, 5u);
  const auto plain = ParseGeminiGenerate(Body(""));
  ASSERT_THAT(plain, IsOk());
  EXPECT_FALSE(plain->shows_thoughts);
  EXPECT_FALSE(plain->tokens_max.has_value());
}

TEST(GeminiRequest, SchemasAreTranslated) {
  const SchemaJson schema = SchemaJson::parse(R"({"type":"OBJECT","properties":{
    "b":{"type":"STRING","nullable":true},"a":{"type":"ARRAY","items":{"type":"INTEGER"},
    "minItems":"2"},"e":{"type":"STRING","format":"enum","enum":["x"]}},
    "propertyOrdering":["b","a","e"],"required":["a"]})");
  EXPECT_EQ(GeminiSchema(schema).dump(),
            R"({"type":"object","properties":{"b":{"anyOf":[{"type":"string"},{"type":"null"}]},)"
            R"("a":{"type":"array","items":{"type":"integer"},"minItems":2},)"
            R"("e":{"type":"string","enum":["x"]}},"required":["a"]})");
  const auto with_schema = [](const std::string& config) {
    return ParseGeminiGenerate(Body(absl::StrCat(",\"generationConfig\":", config)));
  };
  const auto own =
      with_schema(R"({"responseMimeType":"application/json","responseSchema":{"type":"INTEGER"}})");
  ASSERT_THAT(own, IsOk());
  EXPECT_EQ(own->answer_schema, R"({"type":"integer"})");
  const auto any = with_schema(R"({"responseMimeType":"application/json"})");
  ASSERT_THAT(any, IsOk());
  EXPECT_EQ(any->answer_schema, R"({"type":"object"})");
  const auto choice = with_schema(
      R"({"responseMimeType":"text/x.enum","responseSchema":{"type":"STRING","enum":["ja"]}})");
  ASSERT_THAT(choice, IsOk());
  EXPECT_THAT(choice->sampler.grammar(), HasSubstr("\"ja\""));
}

TEST(GeminiRequest, FunctionsAreTools) {
  const std::string tools = R"(,"tools":[{"functionDeclarations":[
    {"name":"a","description":"A","parameters":{"type":"OBJECT","properties":{}}},
    {"name":"b","parametersJsonSchema":{"type":"object"}},{"name":"c"}]}])";
  const auto any = ParseGeminiGenerate(Body(absl::StrCat(
      tools,
      R"(,"toolConfig":{"functionCallingConfig":{"mode":"ANY","allowedFunctionNames":["a","b"]}})")));
  ASSERT_THAT(any, IsOk());
  EXPECT_EQ(any->tools.choice, ChatTools::Choice::kRequired);
  ASSERT_EQ(any->tools.list.size(), 2u);
  EXPECT_EQ(any->tools.list[0].parameters, R"({"type":"object","properties":{}})");
  EXPECT_EQ(any->tools.list[1].path, "tools[0].functionDeclarations[1].parametersJsonSchema");
  const auto none = ParseGeminiGenerate(
      Body(tools + R"(,"tool_config":{"function_calling_config":{"mode":"none"}})"));
  ASSERT_THAT(none, IsOk());
  EXPECT_FALSE(none->tools.offered());
  EXPECT_EQ(ParamOfError(tools + R"(,"toolConfig":{"functionCallingConfig":{"mode":"ANY",
    "allowedFunctionNames":["x"]}})"),
            "toolConfig.functionCallingConfig.allowedFunctionNames");
}

TEST(GeminiRequest, WhatIsWrongIsNamed) {
  EXPECT_EQ(ParamOf(ParseGeminiGenerate("{}").status()), "contents");
  EXPECT_EQ(ParamOf(ParseGeminiGenerate(R"({"contents":[{"role":"x","parts":[]}]})").status()),
            "contents[0].role");
  const auto part = [](const std::string& json) {
    return ParamOf(
        ParseGeminiGenerate(absl::StrCat(R"({"contents":[{"parts":[)", json, "]}]}")).status());
  };
  EXPECT_EQ(part(R"({"text":1})"), "contents[0].parts[0].text");
  EXPECT_EQ(part(R"({"inlineData":{}})"), "contents[0].parts[0].inlineData");
  EXPECT_EQ(part(R"({"functionResponse":{"name":"f"}})"),
            "contents[0].parts[0].functionResponse.response");
  EXPECT_EQ(ParamOfError(R"(,"tools":[{"googleSearch":{}}])"), "tools[0].googleSearch");
  EXPECT_EQ(ParamOfError(R"(,"cachedContent":"x")"), "cachedContent");
  EXPECT_EQ(ParamOfError(R"(,"generationConfig":{"temperature":"x"})"),
            "generationConfig.temperature");
  EXPECT_EQ(ParamOfError(R"(,"generationConfig":{"responseModalities":["AUDIO"]})"),
            "generationConfig.responseModalities");
  EXPECT_EQ(Json::parse(GeminiError({.http_status = 404, .message = "no"})),
            Json::parse(R"({"error":{"code":404,"message":"no","status":"NOT_FOUND"}})"));
}

TEST(GeminiRequest, CountsAndEmbeds) {
  for (const std::string& body :
       {Body(""), absl::StrCat(R"({"generateContentRequest":)", Body(""), "}")}) {
    const auto count = ParseGeminiCount(body);
    ASSERT_THAT(count, IsOk());
    EXPECT_EQ(count->messages[0].content, "Hi");
  }
  const std::string one = R"({"content":{"parts":[{"text":"a"}]},"outputDimensionality":3})";
  const auto single = ParseGeminiEmbed(one, /*is_batch=*/false);
  ASSERT_THAT(single, IsOk());
  EXPECT_EQ(single->inputs[0].text, "a");
  EXPECT_EQ(single->dimensions, 3u);
  const auto batch =
      ParseGeminiEmbed(absl::StrCat(R"({"requests":[)", one, ",", one, "]}"), /*is_batch=*/true);
  ASSERT_THAT(batch, IsOk());
  EXPECT_EQ(batch->inputs.size(), 2u);
  EXPECT_EQ(ParamOf(ParseGeminiEmbed("{}", /*is_batch=*/true).status()), "requests");
  EXPECT_EQ(ParamOf(ParseGeminiEmbed("{}", /*is_batch=*/false).status()), "content");
}

}  // namespace
}  // namespace strata
