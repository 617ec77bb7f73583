#include "node/api/responses/responses_request.h"

#include <string>

#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class ResponsesRequestTest : public ::testing::Test {
 protected:
  absl::StatusOr<ResponsesRequest> Parse(const std::string& body) {
    return ParseResponses(body, "ann", &store_);
  }
  ResponsesRequest Read(const std::string& body) {
    auto request = Parse(body);
    EXPECT_TRUE(request.ok()) << request.status() << "\n" << body;
    return request.ok() ? *std::move(request) : ResponsesRequest();
  }
  // The field that is wrong.
  std::string Wrong(const std::string& body) {
    const auto request = Parse(body);
    EXPECT_FALSE(request.ok()) << body;
    return ParamOf(request.status());
  }
  std::string WrongItem(const std::string& item) { return Wrong(R"({"input":[)" + item + "]}"); }

  ResponseStore store_;
};

TEST_F(ResponsesRequestTest, SaysWhatTheCachesMayDo) {
  const ApiRequest api = Read(R"({"input":"x","cache_prompt":false,"cache_salt":"s"})").api;
  EXPECT_TRUE(api.no_cache);
  EXPECT_EQ(api.cache_salt, "s");
  EXPECT_FALSE(Read(R"({"input":"x"})").api.no_cache);
  EXPECT_EQ(Wrong(R"({"input":"x","cache_prompt":"no"})"), "cache_prompt");
}

TEST_F(ResponsesRequestTest, AStringIsAMessageOfTheUser) {
  const ResponsesRequest request = Read(R"({
      "model":"m","input":"Hello","instructions":"Be brief","max_output_tokens":16,"stream":true,
      "temperature":0.5,"user":"u","service_tier":"auto","prompt_cache_key":"k",
      "include":["reasoning.encrypted_content"],"truncation":"auto","client_metadata":{"a":"b"},
      "stream_options":{"include_obfuscation":false},"background":false,"metadata":{"k":"v"}})");
  ASSERT_EQ(request.api.messages.size(), 2u);
  EXPECT_EQ(request.api.messages[0].role, "system");
  EXPECT_EQ(request.api.messages[0].content, "Be brief");
  EXPECT_EQ(request.api.messages[1].role, "user");
  EXPECT_EQ(request.api.messages[1].content, "Hello");
  EXPECT_TRUE(request.api.chat && request.api.stream && request.store);
  EXPECT_EQ(request.api.tokens_max, 16u);
  EXPECT_EQ(request.items.size(), 1u);  // without the instructions
  EXPECT_EQ(request.items[0]["content"][0]["type"], "input_text");
  EXPECT_EQ(request.echo["instructions"], "Be brief");
  EXPECT_EQ(request.echo["temperature"], 0.5);
  EXPECT_EQ(request.echo["metadata"]["k"], "v");
  EXPECT_EQ(request.echo["truncation"], "disabled");
  EXPECT_EQ(request.echo["tool_choice"], "auto");
  EXPECT_TRUE(request.echo["previous_response_id"].is_null());

  EXPECT_EQ(Read(R"({"input":"","max_output_tokens":1})").api.messages[0].content, "");
}

TEST_F(ResponsesRequestTest, ItemsOfTheAssistantThatFollowEachOtherAreOneMessage) {
  const ResponsesRequest request = Read(R"({"input":[
      {"role":"developer","content":"Rules"},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"Weather "},
                                                 {"type":"input_text","text":"in Rome?"}]},
      {"type":"reasoning","id":"rs_1","summary":[],
       "content":[{"type":"reasoning_text","text":"I look."}]},
      {"type":"message","id":"msg_1","status":"completed","role":"assistant",
       "content":[{"type":"output_text","text":"One moment.","annotations":[]}]},
      {"type":"function_call","id":"fc_1","call_id":"c1","name":"get","arguments":"{\"a\":1}"},
      {"type":"function_call","call_id":"c2","name":"wait","arguments":"{}"},
      {"type":"function_call_output","call_id":"c2","output":"done"},
      {"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"sun"}]},
      {"type":"reasoning","summary":[{"type":"summary_text","text":"It shines."}],
       "encrypted_content":"x"},
      {"role":"assistant","content":"Sun."},
      {"type":"reasoning","summary":[]},
      {"role":"user","content":"Thanks"}]})");
  const auto& messages = request.api.messages;
  ASSERT_EQ(messages.size(), 7u);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_EQ(messages[1].content, "Weather in Rome?");
  EXPECT_EQ(messages[2].role, "assistant");
  EXPECT_EQ(messages[2].reasoning, "I look.");
  EXPECT_EQ(messages[2].content, "One moment.");
  ASSERT_EQ(messages[2].calls.size(), 2u);
  EXPECT_EQ(messages[2].calls[0].id, "c1");
  EXPECT_EQ(messages[2].calls[0].arguments, "{\"a\":1}");
  EXPECT_EQ(messages[3].role, "tool");
  EXPECT_EQ(messages[3].call_id, "c2");
  EXPECT_EQ(messages[3].name, "wait");
  EXPECT_EQ(messages[3].content, "done");
  EXPECT_EQ(messages[4].content, "sun");
  EXPECT_EQ(messages[5].reasoning, "It shines.");
  EXPECT_EQ(messages[5].content, "Sun.");
  EXPECT_EQ(messages[6].content, "Thanks");
  EXPECT_EQ(request.items.size(), 12u);
}

TEST_F(ResponsesRequestTest, AWrongItemIsNamed) {
  EXPECT_EQ(Wrong("{}"), "input");
  EXPECT_EQ(Wrong(R"({"input":[]})"), "input");
  EXPECT_EQ(Wrong(R"({"input":5})"), "input");
  EXPECT_EQ(WrongItem("5"), "input[0]");
  EXPECT_EQ(WrongItem("{}"), "input[0].type");
  EXPECT_EQ(WrongItem(R"({"role":"tool","content":"x"})"), "input[0].role");
  EXPECT_EQ(WrongItem(R"({"role":"user"})"), "input[0].content");
  EXPECT_EQ(WrongItem(R"({"role":"user","content":[{"type":"input_image","image_url":"x"}]})"),
            "input[0].content[0].type");
  EXPECT_EQ(WrongItem(R"({"role":"user","content":[{"type":"input_file","file_id":"x"}]})"),
            "input[0].content[0].type");
  EXPECT_EQ(WrongItem(R"({"role":"user","content":[{"type":"input_text"}]})"),
            "input[0].content[0].text");
  EXPECT_EQ(WrongItem(R"({"type":"function_call","name":"f","arguments":"{}"})"),
            "input[0].call_id");
  EXPECT_EQ(WrongItem(R"({"type":"function_call","name":"f","call_id":"c","arguments":{}})"),
            "input[0].arguments");
  EXPECT_EQ(WrongItem(R"({"type":"function_call_output","call_id":"c","output":"x"})"),
            "input[0].call_id");
  EXPECT_EQ(WrongItem(R"({"type":"item_reference","id":"msg_9"})"), "input[0].id");
  EXPECT_EQ(WrongItem(R"({"type":"computer_call"})"), "input[0].type");
  EXPECT_EQ(WrongItem(R"({"type":"reasoning","summary":[]})"), "input");
}

TEST_F(ResponsesRequestTest, WhatCannotBeKeptIsRefused) {
  EXPECT_EQ(Wrong(R"({"input":"x","background":true})"), "background");
  EXPECT_EQ(Wrong(R"({"input":"x","conversation":"conv_1"})"), "conversation");
  EXPECT_EQ(Wrong(R"({"input":"x","prompt":{"id":"p"}})"), "prompt");
  EXPECT_EQ(Wrong(R"({"input":"x","top_logprobs":2})"), "top_logprobs");
  EXPECT_EQ(Wrong(R"({"input":"x","include":["message.output_text.logprobs"]})"), "include");
  EXPECT_EQ(Wrong(R"({"input":"x","truncation":"some"})"), "truncation");
  EXPECT_EQ(Wrong(R"({"input":"x","max_output_tokens":0})"), "max_output_tokens");
  EXPECT_EQ(Wrong(R"({"input":"x","metadata":{"k":1}})"), "metadata.k");
  EXPECT_EQ(Wrong(R"({"input":"x","reasoning":{"effort":"hard"}})"), "reasoning.effort");
  EXPECT_EQ(Wrong(R"({"input":"x","store":"yes"})"), "store");
  EXPECT_EQ(Wrong(R"({"input":"x","tools":[{"type":"file_search"}]})"), "tools[0].type");
  EXPECT_EQ(Wrong(R"({"input":"x","tools":[{"type":"mcp"}]})"), "tools[0].type");
  EXPECT_EQ(Wrong(R"({"input":"x","tools":[{"type":"function","name":"a b"}]})"), "tools[0].name");
  EXPECT_EQ(Wrong(R"({"input":"x","tools":[{"type":"namespace","name":"n","tools":[
                {"type":"mcp"}]}]})"),
            "tools[0].tools[0].type");
  EXPECT_EQ(Wrong(R"({"input":"x","tool_choice":{"type":"function","name":"f"}})"), "tool_choice");
  EXPECT_EQ(Wrong(R"({"input":"x","tools":[{"type":"web_search"}],"tool_choice":"required"})"),
            "tool_choice");
}

TEST_F(ResponsesRequestTest, ReadsToolsOfAllForms) {
  const ResponsesRequest request = Read(R"({"input":"x","parallel_tool_calls":false,"tools":[
      {"type":"web_search","external_web_access":false},
      {"type":"function","name":"shell","description":"Runs","strict":true,
       "parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"string"}}}},
      {"type":"custom","name":"apply_patch","description":"Patches",
       "format":{"type":"grammar","syntax":"lark","definition":"start: X"}},
      {"type":"namespace","name":"mcp__sky","description":"Sky","tools":[
        {"type":"function","name":"look","strict":false,"parameters":{"type":"object"}}]}],
      "tool_choice":{"type":"function","name":"shell"}})");
  const ChatTools& tools = request.api.tools;
  ASSERT_EQ(tools.list.size(), 3u);
  EXPECT_EQ(tools.list[0].name, "shell");
  EXPECT_TRUE(tools.list[0].strict);
  EXPECT_EQ(tools.list[0].path, "tools[1].parameters");
  EXPECT_LT(tools.list[0].json.find("\"z\""), tools.list[0].json.find("\"a\""));
  EXPECT_EQ(tools.list[1].name, "apply_patch");
  EXPECT_THAT(tools.list[1].json, HasSubstr("start: X"));
  EXPECT_THAT(tools.list[1].parameters, HasSubstr("input"));
  EXPECT_EQ(tools.list[2].name, "mcp__sky.look");
  EXPECT_EQ(tools.only, "shell");
  EXPECT_FALSE(tools.parallel);
  ASSERT_EQ(request.renamed.size(), 2u);
  EXPECT_TRUE(request.renamed[0].is_custom);
  EXPECT_EQ(request.renamed[1].name_space, "mcp__sky");
  EXPECT_EQ(request.renamed[1].name, "look");
  EXPECT_EQ(request.echo["tools"].size(), 4u);

  const ResponsesRequest allowed = Read(R"({"input":"x","tools":[
      {"type":"function","name":"f"},{"type":"function","name":"g"}],
      "tool_choice":{"type":"allowed_tools","mode":"required",
                     "tools":[{"type":"function","name":"g"}]}})");
  ASSERT_EQ(allowed.api.tools.list.size(), 1u);
  EXPECT_EQ(allowed.api.tools.list[0].name, "g");
  EXPECT_EQ(allowed.echo["tools"][0]["strict"], false);
}

TEST_F(ResponsesRequestTest, CallsOfRenamedToolsAreShownAsTheModelMadeThem) {
  const ResponsesRequest request = Read(R"({"input":[{"role":"user","content":"x"},
      {"type":"custom_tool_call","call_id":"c1","name":"apply_patch","input":"a \"b\"\n"},
      {"type":"custom_tool_call_output","call_id":"c1","output":"ok"},
      {"type":"function_call","call_id":"c2","namespace":"mcp__sky","name":"look",
       "arguments":"{}"}]})");
  ASSERT_EQ(request.api.messages.size(), 4u);
  const ChatToolCall& custom = request.api.messages[1].calls.at(0);
  EXPECT_EQ(Json::parse(custom.arguments), Json::parse(R"({"input":"a \"b\"\n"})"));
  EXPECT_EQ(CustomInput(custom.arguments), "a \"b\"\n");
  EXPECT_EQ(request.api.messages[3].calls.at(0).name, "mcp__sky.look");
}

TEST_F(ResponsesRequestTest, TheTextsFormatConstrainsTheAnswer) {
  const ResponsesRequest request = Read(R"({"input":"x","text":{"verbosity":"low","format":{
      "type":"json_schema","name":"n","strict":true,
      "schema":{"type":"object","properties":{"z":{},"a":{}}}}}})");
  EXPECT_EQ(request.api.answer_schema, R"({"type":"object","properties":{"z":{},"a":{}}})");
  EXPECT_EQ(request.api.answer_path, "text.format.schema");
  EXPECT_TRUE(request.api.answer_strict);
  EXPECT_EQ(request.echo["text"]["verbosity"], "low");
  EXPECT_EQ(request.echo["text"]["format"]["name"], "n");
  EXPECT_NE(Read(R"({"input":"x","text":{"format":{"type":"json_object"}}})").api.answer_schema,
            "");
  EXPECT_EQ(Read(R"({"input":"x","text":{"format":{"type":"text"}}})").api.answer_schema, "");
  EXPECT_EQ(Wrong(R"({"input":"x","text":{"format":{"type":"xml"}}})"), "text.format.type");
  EXPECT_EQ(Wrong(R"({"input":"x","text":{"format":{"type":"json_schema"}}})"),
            "text.format.schema");
  EXPECT_EQ(Wrong(R"({"input":"x","text":"plain"})"), "text");
}

TEST_F(ResponsesRequestTest, GoesOnFromAStoredResponse) {
  store_.Put("ann", "resp_1",
             {.output = R"([{"type":"function_call","id":"fc_1","call_id":"c1",
                 "name":"f","arguments":"{}"}])",
              .input = R"([{"type":"message","role":"user","content":"Go"}])",
              .output_ids = {"fc_1"}});
  const ResponsesRequest request = Read(R"({"previous_response_id":"resp_1",
      "instructions":"New","input":[{"type":"function_call_output","call_id":"c1",
                                     "output":"gone"}]})");
  ASSERT_EQ(request.api.messages.size(), 4u);
  EXPECT_EQ(request.api.messages[0].content, "New");
  EXPECT_EQ(request.api.messages[1].content, "Go");
  EXPECT_EQ(request.api.messages[2].calls.at(0).name, "f");
  EXPECT_EQ(request.api.messages[3].content, "gone");
  EXPECT_EQ(request.items.size(), 3u);
  EXPECT_EQ(request.echo["previous_response_id"], "resp_1");

  const ResponsesRequest referred = Read(R"({"input":[{"role":"user","content":"Go"},
      {"type":"item_reference","id":"fc_1"},
      {"type":"function_call_output","call_id":"c1","output":"gone"}]})");
  EXPECT_EQ(Read(R"({"input":[{"id":"fc_1"}]})").api.messages[0].calls.size(), 1u);
  ASSERT_EQ(referred.api.messages.size(), 3u);
  EXPECT_EQ(referred.items[1]["type"], "function_call");

  const auto unknown = Parse(R"({"input":"x","previous_response_id":"resp_2"})");
  EXPECT_EQ(ParamOf(unknown.status()), "previous_response_id");
  EXPECT_EQ(ErrorCodeOf(unknown.status()), "previous_response_not_found");
  EXPECT_FALSE(
      ParseResponses(R"({"input":"x","previous_response_id":"resp_1"})", "bob", &store_).ok());
}

TEST_F(ResponsesRequestTest, WhatIsLongIsNotRepeated) {
  const std::string text(70'000, 'x');
  const ResponsesRequest request = Read(R"({"input":"x","instructions":")" + text +
                                        R"(","user":"u","tool_choice":"required","tools":[
      {"type":"function","name":"f","description":")" +
                                        text + R"("}]})");
  ASSERT_EQ(request.api.messages.size(), 2u);
  EXPECT_EQ(request.api.messages[0].content, text);
  EXPECT_EQ(request.echo["tools"].size(), 1u);
  EXPECT_TRUE(request.echo["instructions"].is_null());
  EXPECT_EQ(request.echo["tool_choice"], "required");
  EXPECT_EQ(request.echo["user"], "u");

  const ResponsesRequest both = Read(R"({"input":"x","text":{"format":{"type":"json_schema",
      "name":"n","schema":{"description":")" +
                                     text + R"("}}},"tools":[
      {"type":"function","name":"f","description":")" +
                                     text + R"("}]})");
  EXPECT_EQ(both.echo["text"]["format"]["name"], "n");
  EXPECT_EQ(both.echo["tools"], Json::array());
  EXPECT_EQ(both.api.tools.list.size(), 1u);
}

TEST_F(ResponsesRequestTest, NamedItemsCannotMakeAShortRequestLong) {
  const std::string text(1 << 20, 'x');
  store_.Put("ann", "resp_1",
             {.output = R"([{"type":"message","role":"assistant","id":"msg_1","content":")" + text +
                        R"("}])",
              .input = "[]",
              .output_ids = {"msg_1"}});
  std::string input = R"({"type":"item_reference","id":"msg_1"})";
  for (int i = 0; i < 4; ++i) input += "," + input;
  EXPECT_EQ(WrongItem(input), "input");
}

}  // namespace
}  // namespace strata
