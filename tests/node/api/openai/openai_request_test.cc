#include "node/api/openai/openai_request.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/request/generation_request.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/api/answer_grammar.h"
#include "node/api/openai/openai_error.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Chat(const std::string& fields) {
  return absl::StrCat(R"({"model":"m","messages":[{"role":"user","content":"Hi"}])", fields, "}");
}
std::string Completion(const std::string& fields) {
  return absl::StrCat(R"({"model":"m","prompt":"Hi")", fields, "}");
}
nlohmann::json ErrorJson(const absl::Status& status) {
  return nlohmann::json::parse(OpenAiError(ErrorOf(status)))["error"];
}

TEST(OpenAiRequest, ACompletionHasTheDefaultsOfTheApi) {
  const auto request = ParseCompletion(Completion(""));
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->model, "m");
  ASSERT_EQ(request->prompts.size(), 1u);
  EXPECT_EQ(request->prompts[0].text, "Hi");
  EXPECT_EQ(request->tokens_max, 16u);
  EXPECT_EQ(request->n, 1u);
  EXPECT_FALSE(request->stream);
  EXPECT_EQ(request->sampler.temperature(), 1.0f);
  EXPECT_EQ(request->sampler.penalty_last_n(), 0);
}

TEST(OpenAiRequest, ReadsEveryFieldOfAChat) {
  const auto request = ParseChat(Chat(
      R"(,"n":2,"stream":true,"stream_options":{"include_usage":true},"max_tokens":5,
      "max_completion_tokens":7,"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.05,"seed":-1,
      "stop":["a","b"],"logprobs":true,"top_logprobs":3,"logit_bias":{"5":-100,"6":1.5},
      "presence_penalty":0.5,"frequency_penalty":-0.5,"repeat_penalty":1.1,"ignore_eos":true,
      "context_shift":true,"n_keep":9,"user":"somebody","unknown":[1,{"a":2}])"));
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->n, 2u);
  EXPECT_TRUE(request->stream);
  EXPECT_TRUE(request->include_usage);
  EXPECT_EQ(request->tokens_max, 7u);
  EXPECT_THAT(request->stops, ElementsAre("a", "b"));
  EXPECT_TRUE(request->logprobs);
  EXPECT_TRUE(request->shift_context);
  EXPECT_EQ(request->keep_tokens, 9u);
  const wire::SamplerSettings& sampler = request->sampler;
  EXPECT_EQ(sampler.temperature(), 0.5f);
  EXPECT_EQ(sampler.top_p(), 0.9f);
  EXPECT_EQ(sampler.top_k(), 40);
  EXPECT_EQ(sampler.min_p(), 0.05f);
  EXPECT_EQ(sampler.seed(), ~uint64_t{0});
  EXPECT_EQ(sampler.logprobs(), 3u);
  EXPECT_TRUE(sampler.report_logprob());
  ASSERT_EQ(sampler.logit_bias_size(), 2);
  EXPECT_EQ(sampler.logit_bias(0).token(), 5);
  EXPECT_EQ(sampler.logit_bias(0).bias(), -100.0f);
  EXPECT_EQ(sampler.penalty_presence(), 0.5f);
  EXPECT_EQ(sampler.penalty_frequency(), -0.5f);
  EXPECT_EQ(sampler.penalty_repeat(), 1.1f);
  EXPECT_EQ(sampler.penalty_last_n(), -1);
  EXPECT_TRUE(sampler.ignore_eog());
}

TEST(OpenAiRequest, SaysWhatTheCachesMayDo) {
  const auto request = ParseCompletion(Completion(R"(,"cache_prompt":false,"cache_salt":"s")"));
  ASSERT_THAT(request, IsOk());
  EXPECT_TRUE(request->no_cache);
  EXPECT_EQ(request->cache_salt, "s");
}

TEST(OpenAiRequest, NullMeansNotGiven) {
  EXPECT_THAT(ParseChat(Chat(R"(,"n":null,"stream":null,"stop":null,"temperature":null,
      "max_tokens":null,"logit_bias":null,"tools":null,"response_format":null,"seed":null)")),
              IsOk());
}

TEST(OpenAiRequest, TakesAsManyStopStringsAsEditorsSend) {
  nlohmann::json stops = nlohmann::json::array();
  for (size_t i = 0; i < kApiStopsMax; ++i) stops.push_back(absl::StrCat("stop ", i));
  const auto ask = [&] { return Chat(absl::StrCat(",\"stop\":", stops.dump())); };
  EXPECT_EQ(ParseChat(ask())->stops.size(), kApiStopsMax);
  EXPECT_GE(kApiStopsMax, 64u);
  stops.push_back("one more");
  EXPECT_EQ(ErrorJson(ParseChat(ask()).status())["param"], "stop");
}

TEST(OpenAiRequest, TheNumberOfTokensHasSeveralNames) {
  EXPECT_EQ(ParseCompletion(Completion(R"(,"n_predict":5)"))->tokens_max, 5u);
  EXPECT_EQ(ParseChat(Chat(R"(,"n_predict":5)"))->tokens_max, 5u);
  EXPECT_EQ(ParseCompletion(Completion(R"(,"max_completion_tokens":6)"))->tokens_max, 6u);
  EXPECT_EQ(ParseCompletion(Completion(R"(,"n_predict":5,"max_tokens":7)"))->tokens_max, 5u);
  for (const char* none : {R"(,"max_tokens":-1)", R"(,"n_predict":-1)", R"(,"max_tokens":-1.0)"}) {
    EXPECT_EQ(ParseCompletion(Completion(none))->tokens_max, std::nullopt) << none;
    EXPECT_EQ(ParseChat(Chat(none))->tokens_max, std::nullopt) << none;
  }
  EXPECT_EQ(ParseCompletion(Completion(R"(,"max_tokens":0)"))->tokens_max, 0u);
}

TEST(OpenAiRequest, ReadsFieldsOfOtherServers) {
  const auto request = ParseCompletion(Completion(
      R"(,"min_tokens":3,"stop_token_ids":[4,5],"include_stop_str_in_output":true,
      "add_special_tokens":false,"typical_p":0.9,"xtc_probability":0.5,"xtc_threshold":0.2,
      "mirostat":2,"mirostat_tau":4,"mirostat_eta":0.2,"dry_multiplier":0.8,"dry_base":2,
      "dry_allowed_length":3,"dry_penalty_last_n":64,"dry_sequence_breakers":["x"],
      "logit_bias":[[5,1.5],[6,false]],"n_keep":-1)"));
  ASSERT_THAT(request, IsOk());
  EXPECT_TRUE(request->show_stop);
  EXPECT_TRUE(request->no_special);
  const wire::SamplerSettings& sampler = request->sampler;
  EXPECT_EQ(sampler.tokens_min(), 3u);
  EXPECT_THAT(sampler.stop_tokens(), ElementsAre(4, 5));
  EXPECT_EQ(sampler.typical_p(), 0.9f);
  EXPECT_EQ(sampler.xtc_probability(), 0.5f);
  EXPECT_EQ(sampler.mirostat(), 2);
  EXPECT_EQ(sampler.mirostat_tau(), 4.0f);
  EXPECT_EQ(sampler.dry_multiplier(), 0.8f);
  EXPECT_THAT(sampler.dry_sequence_breakers(), ElementsAre("x"));
  ASSERT_EQ(sampler.logit_bias_size(), 2);
  EXPECT_LT(sampler.logit_bias(1).bias(), -100.0f);
}

TEST(OpenAiRequest, ReadsTemplateOptions) {
  const auto request = ParseChat(
      R"({"messages":[{"role":"assistant","content":"The"}],"continue_final_message":true,
      "add_generation_prompt":false,"chat_template_kwargs":{"enable_thinking":false}})");
  ASSERT_THAT(request, IsOk());
  EXPECT_TRUE(request->continues_last);
  EXPECT_FALSE(request->ends_with_opening);
  EXPECT_EQ(request->template_variables, R"({"enable_thinking":false})");
  for (const auto& [fields, param] :
       {std::pair(R"(,"continue_final_message":true)", "continue_final_message"),
        std::pair(R"(,"add_generation_prompt":1)", "add_generation_prompt"),
        std::pair(R"(,"chat_template_kwargs":[1])", "chat_template_kwargs")}) {
    EXPECT_EQ(ErrorJson(ParseChat(Chat(fields)).status())["param"], param);
  }
}

TEST(OpenAiRequest, ReadsAllKindsOfPrompts) {
  const auto of = [](const std::string& prompt) {
    return ParseCompletion(absl::StrCat(R"({"prompt":)", prompt, "}"));
  };
  EXPECT_EQ(of(R"(["a","b"])")->prompts.size(), 2u);
  EXPECT_THAT(of("[1,2,3]")->prompts[0].tokens, ElementsAre(1, 2, 3));
  EXPECT_THAT(of("[[1,2],[3]]")->prompts[1].tokens, ElementsAre(3));
  for (const char* bad : {"[]", "[[]]", "[-1]", "{}", "7", "[1.5]", R"([1,"a"])", "[[1],[-2]]"}) {
    EXPECT_THAT(of(bad), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("prompt"))) << bad;
  }
}

TEST(OpenAiRequest, JoinsTextPartsOfAMessage) {
  const auto request = ParseChat(
      R"({"messages":[{"role":"developer","content":"Be brief."},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":null}]})");
  ASSERT_THAT(request, IsOk());
  ASSERT_EQ(request->messages.size(), 3u);
  EXPECT_EQ(request->messages[0].role, "system");
  EXPECT_EQ(request->messages[1].content, "ab");
  EXPECT_EQ(request->messages[2].content, "");
}

TEST(OpenAiRequest, AWrongTypeNamesItsField) {
  const struct {
    const char* fields;
    const char* param;
  } cases[] = {
      {R"(,"temperature":"hot")", "temperature"},
      {R"(,"temperature":101)", "temperature"},
      {R"(,"presence_penalty":"1")", "presence_penalty"},
      {R"(,"top_p":-0.1)", "top_p"},
      {R"(,"n":0)", "n"},
      {R"(,"n":1.5)", "n"},
      {R"(,"n":65)", "n"},
      {R"(,"max_tokens":-3)", "max_tokens"},
      {R"(,"n_predict":0.5)", "n_predict"},
      {R"(,"min_tokens":9,"max_tokens":8)", "min_tokens"},
      {R"(,"min_tokens":1,"grammar":"root ::= [a-z]")", "min_tokens"},
      {R"(,"stop_token_ids":[-1])", "stop_token_ids"},
      {R"(,"stop_token_ids":7)", "stop_token_ids"},
      {R"(,"mirostat":3)", "mirostat"},
      {R"(,"dry_sequence_breakers":[""])", "dry_sequence_breakers"},
      {R"(,"logit_bias":[[1,2,3]])", "logit_bias"},
      {R"(,"logit_bias":[["word",1]])", "logit_bias"},
      {R"(,"max_tokens":1e30)", "max_tokens"},
      {R"(,"stream":"yes")", "stream"},
      {R"(,"stream_options":7)", "stream_options"},
      {R"(,"stream_options":{"include_usage":7})", "stream_options.include_usage"},
      {R"(,"stop":[1])", "stop"},
      {R"(,"stream_options":{"continuous_usage_stats":7})",
       "stream_options.continuous_usage_stats"},
      {R"(,"functions":[{"name":""}])", "functions[0].name"},
      {R"(,"functions":[{"name":"f"}],"tools":[{"type":"function","function":{"name":"g"}}])",
       "functions"},
      {R"(,"functions":[{"name":"f"}],"function_call":{"name":"g"})", "function_call"},
      {R"(,"functions":[{"name":"f"}],"function_call":7)", "function_call"},
      {R"(,"tools":[{"type":"custom","custom":{"name":"x"}}])", "tools[0].type"},
      {R"(,"tools":[{"type":"web_search_preview"}])", "tools[0].type"},
      {R"(,"response_format":{"type":"grammar"})", "response_format.grammar"},
      {R"(,"response_format":{"type":"grammar","grammar":"x"})", "response_format.grammar"},
      {R"(,"seed":1.5)", "seed"},
      {R"(,"logit_bias":[1])", "logit_bias"},
      {R"(,"logit_bias":{"x":1})", "logit_bias"},
      {R"(,"logit_bias":{"1":1000})", "logit_bias"},
      {R"(,"model":7)", "model"},
      {R"(,"top_logprobs":2)", "top_logprobs"},
      {R"(,"logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"(,"messages":[])", "messages"},
      {R"(,"messages":[{"role":"user"}])", "messages[0].content"},
      {R"(,"messages":[{"role":"king","content":""}])", "messages[0].role"},
      {R"(,"messages":["Hi"])", "messages[0]"},
      {R"(,"messages":[{"role":"user","content":7}])", "messages[0].content"},
  };
  for (const auto& test : cases) {
    const auto request = ParseChat(Chat(test.fields));
    ASSERT_THAT(request, StatusIs(absl::StatusCode::kInvalidArgument)) << test.fields;
    EXPECT_EQ(ErrorJson(request.status())["param"], test.param);
    EXPECT_EQ(ErrorJson(request.status())["type"], "invalid_request_error");
  }
}

TEST(OpenAiRequest, EchoesThePromptWithItsLogprobs) {
  const auto asks = [](const char* fields) {
    const auto request = ParseCompletion(Completion(fields));
    EXPECT_THAT(request, IsOk());
    return request.ok() && request->sampler.prompt_logprobs();
  };
  EXPECT_TRUE(asks(R"(,"echo":true,"logprobs":1)"));
  EXPECT_FALSE(asks(R"(,"echo":true)"));
  EXPECT_FALSE(asks(R"(,"logprobs":1)"));
  const auto of_tokens = ParseCompletion(R"({"prompt":[1,2],"echo":true})");
  ASSERT_THAT(of_tokens, IsOk());
  EXPECT_TRUE(of_tokens->sampler.prompt_logprobs());  // for their text
}

TEST(OpenAiRequest, ASuffixIsOfACompletion) {
  EXPECT_EQ(ParseCompletion(Completion(R"(,"suffix":"x")"))->infill->suffix, "x");
  EXPECT_FALSE(ParseCompletion(Completion(R"(,"suffix":"")"))->infill);
}

TEST(OpenAiRequest, SaysWhatIsNotSupportedYet) {
  for (const char* fields :
       {R"(,"suffix":"x")", R"(,"messages":[{"role":"user","content":[{"type":"image_url"}]}])"}) {
    const auto request = ParseChat(Chat(fields));
    ASSERT_THAT(request, StatusIs(absl::StatusCode::kUnimplemented)) << fields;
    EXPECT_THAT(ErrorJson(request.status())["message"], HasSubstr("not supported yet"));
    EXPECT_EQ(HttpStatusOf(request.status()), 400);
  }
  EXPECT_THAT(
      ParseChat(Chat(R"(,"response_format":{"type":"text"},"tools":[],"tool_choice":"none")")),
      IsOk());
  EXPECT_THAT(ParseCompletion(Completion(R"(,"echo":true,"suffix":"x")")),
              StatusIs(absl::StatusCode::kUnimplemented));
}

TEST(OpenAiRequest, TakesWhatLocalClientsSend) {
  const auto request = ParseChat(Chat(
      R"(,"temperature":2.5,"presence_penalty":3,"frequency_penalty":-4,"stop":["","x"],
      "response_format":{"type":"grammar","grammar":"root ::= \"a\""},
      "messages":[{"role":"user","content":[{"type":"input_text","text":"a"},
        {"type":"output_text","text":"b"}]},
      {"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}])"));
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->sampler.temperature(), 2.5f);
  EXPECT_EQ(request->sampler.penalty_presence(), 3.0f);
  EXPECT_EQ(request->sampler.penalty_frequency(), -4.0f);
  EXPECT_EQ(request->sampler.grammar(), "root ::= \"a\"");
  EXPECT_EQ(request->stops, std::vector<std::string>{"x"});
  EXPECT_EQ(request->messages[0].content, "ab");
  EXPECT_EQ(request->messages[1].content, "no");
  EXPECT_TRUE(ParseChat(Chat(R"(,"stop":"")"))->stops.empty());
}

TEST(OpenAiRequest, OldFunctionsAreTools) {
  const auto request = ParseChat(Chat(
      R"(,"functions":[{"name":"sum","parameters":{"type":"object","properties":{"a":{}}}},
        {"name":"f"}],"function_call":{"name":"sum"},
      "messages":[{"role":"user","content":"2+2?"},
      {"role":"assistant","content":null,"function_call":{"name":"sum","arguments":"{}"}},
      {"role":"function","name":"sum","content":"4"}])"));
  ASSERT_THAT(request, IsOk());
  EXPECT_TRUE(request->calls_functions);
  EXPECT_FALSE(request->tools.parallel);
  ASSERT_EQ(request->tools.list.size(), 2u);
  EXPECT_EQ(request->tools.list[0].path, "functions[0].parameters");
  EXPECT_EQ(nlohmann::json::parse(request->tools.list[0].json)["function"]["name"], "sum");
  EXPECT_EQ(request->tools.choice, ChatTools::Choice::kRequired);
  EXPECT_EQ(request->tools.only, "sum");
  ASSERT_EQ(request->messages[1].calls.size(), 1u);
  EXPECT_EQ(request->messages[2].role, "tool");
  EXPECT_EQ(request->messages[2].call_id, request->messages[1].calls[0].id);
  EXPECT_FALSE(
      ParseChat(Chat(R"(,"functions":[{"name":"f"}],"function_call":"none")"))->tools.offered());
  EXPECT_FALSE(ParseChat(Chat(R"(,"functions":[])"))->calls_functions);
}

TEST(OpenAiRequest, ReadsToolsAndToolCalls) {
  const auto request = ParseChat(
      R"({"messages":[{"role":"user","content":"2+2?"},
      {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",
        "function":{"name":"sum","arguments":"{\"a\":2}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"4"}],
      "tools":[{"type":"function","function":{"name":"sum","parameters":{"type":"object",
        "properties":{"z":{"type":"integer"},"a":{"type":"integer"}}}}}],
      "tool_choice":{"type":"function","function":{"name":"sum"}},"parallel_tool_calls":false})");
  ASSERT_THAT(request, IsOk());
  ASSERT_EQ(request->messages.size(), 3u);
  ASSERT_EQ(request->messages[1].calls.size(), 1u);
  EXPECT_EQ(request->messages[1].calls[0].arguments, R"({"a":2})");
  EXPECT_EQ(request->messages[2].call_id, "c1");
  ASSERT_EQ(request->tools.list.size(), 1u);
  EXPECT_EQ(request->tools.only, "sum");
  EXPECT_FALSE(request->tools.parallel);
  // In the client's order.
  EXPECT_LT(request->tools.list[0].parameters.find("\"z\""),
            request->tools.list[0].parameters.find("\"a\""));
}

TEST(OpenAiRequest, ToolChoicesOfOtherDialectsAreTheSame) {
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f"}},
      {"type":"function","function":{"name":"mcp/server:g.h"}}],"tool_choice":)";
  const auto read = [&](const std::string& choice) {
    auto request = ParseChat(Chat(tools + choice));
    EXPECT_THAT(request, IsOk()) << choice;
    return request.ok() ? request->tools : ChatTools();
  };
  EXPECT_EQ(read(R"("any")").choice, ChatTools::Choice::kRequired);
  EXPECT_EQ(read(R"({"type":"any"})").choice, ChatTools::Choice::kRequired);
  for (const char* named : {R"({"type":"tool","name":"mcp/server:g.h"})",
                            R"({"type":"function","name":"mcp/server:g.h"})"}) {
    EXPECT_EQ(read(named).only, "mcp/server:g.h");
  }
  const ChatTools allowed = read(R"({"type":"allowed_tools","allowed_tools":{"mode":"auto",
      "tools":[{"type":"function","function":{"name":"f"}}]}})");
  ASSERT_EQ(allowed.list.size(), 1u);
  EXPECT_EQ(allowed.list[0].name, "f");
  EXPECT_EQ(allowed.choice, ChatTools::Choice::kAuto);
  EXPECT_THAT(ParseChat(Chat(tools + R"({"type":"allowed_tools","allowed_tools":{"mode":"auto",
      "tools":[{"type":"function","function":{"name":"x"}}]}})")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no tool \"x\"")));
}

TEST(OpenAiRequest, ToolsResultsFindTheirCalls) {
  const auto request = ParseChat(R"({"messages":[{"role":"user","content":"?"},
      {"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}},
        {"id":"own","function":{"name":"g","arguments":"{}"}}]},
      {"role":"tool","name":"g","content":{"t":4}},{"role":"tool","content":["x"]}]})");
  ASSERT_THAT(request, IsOk());
  const std::vector<ChatToolCall>& calls = request->messages[1].calls;
  EXPECT_EQ(calls[0].arguments, R"({"a":1})");
  EXPECT_EQ(calls[0].id.size(), 9u);  // as the templates of some families want it
  EXPECT_EQ(request->messages[2].call_id, "own");
  EXPECT_EQ(request->messages[2].content, R"({"t":4})");
  EXPECT_EQ(request->messages[3].call_id, calls[0].id);
  EXPECT_EQ(request->messages[3].content, R"(["x"])");
}

TEST(OpenAiRequest, ATopPOfNothingIsTheLikeliestToken) {
  const auto request = ParseCompletion(Completion(R"(,"top_p":0)"));
  ASSERT_THAT(request, IsOk());
  EXPECT_GT(request->sampler.top_p(), 0);  // to the sampler 0 is off
}

TEST(OpenAiRequest, ReadsOutputConstraints) {
  auto request = ParseChat(Chat(R"(,"response_format":{"type":"json_schema","json_schema":{
      "name":"n","strict":true,"schema":{"type":"object","properties":{"b":{},"a":{}}}}})"));
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->answer_schema, R"({"type":"object","properties":{"b":{},"a":{}}})");
  ASSERT_THAT(Constrain(DecodeChatFormat(""), &*request), IsOk());
  EXPECT_THAT(request->sampler.grammar(), HasSubstr("root ::="));
  request = ParseChat(Chat(R"(,"response_format":{"type":"json_object"})"));
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->answer_schema, R"({"type":"object"})");
  request = ParseCompletion(Completion(R"(,"grammar":"root ::= [a-z]+")"));
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->sampler.grammar(), "root ::= [a-z]+");
  request = ParseCompletion(Completion(R"(,"best_of":3,"n":2,"echo":true)"));
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->n, 3u);
  EXPECT_EQ(request->best_of, 2u);
  EXPECT_TRUE(request->echo);
}

TEST(OpenAiRequest, TheFormsOfOtherServersConstrainAlike) {
  for (const char* fields : {R"(,"json_schema":{"const":"42"})", R"(,"guided_json":{"const":"42"})",
                             R"(,"guided_json":"{\"const\":\"42\"}")",
                             R"(,"structured_outputs":{"json":{"const":"42"},"backend":"auto"})"}) {
    auto request = ParseChat(Chat(fields));
    ASSERT_THAT(request, IsOk()) << fields;
    EXPECT_EQ(request->answer_schema, R"({"const":"42"})") << fields;
    EXPECT_THAT(Constrain(DecodeChatFormat(""), &*request), IsOk()) << fields;
    EXPECT_THAT(request->sampler.grammar(), HasSubstr("42")) << fields;
  }
  for (const char* fields :
       {R"(,"guided_choice":["a\"b","c"])", R"(,"structured_outputs":{"choice":["a\"b","c"]})"}) {
    const auto request = ParseCompletion(Completion(fields));
    ASSERT_THAT(request, IsOk()) << fields;
    EXPECT_THAT(request->sampler.grammar(), HasSubstr(R"("a\x22b")")) << fields;
  }
  for (const char* fields : {R"(,"guided_grammar":"root ::= [a-z]+")",
                             R"(,"structured_outputs":{"grammar":"root ::= [a-z]+"})"}) {
    EXPECT_EQ(ParseChat(Chat(fields))->sampler.grammar(), "root ::= [a-z]+") << fields;
  }
  for (const char* fields : {R"(,"guided_regex":"[a-z]+\\d")", R"(,"regex":"[a-z]+\\d")",
                             R"(,"structured_outputs":{"regex":"[a-z]+\\d"})"}) {
    const auto request = ParseChat(Chat(fields));
    ASSERT_THAT(request, IsOk()) << fields;
    EXPECT_THAT(request->sampler.grammar(), HasSubstr("[0-9]")) << fields;
  }
  EXPECT_EQ(ParseChat(Chat(R"(,"format":{"const":"42"})"))->answer_schema, R"({"const":"42"})");
  EXPECT_EQ(ParseChat(Chat(R"(,"format":"json")"))->answer_schema, R"({"type":"object"})");
  EXPECT_EQ(ParseChat(Chat(R"(,"structured_outputs":{"json_object":true})"))->answer_schema,
            R"({"type":"object"})");
}

TEST(OpenAiRequest, WhatNoGrammarKeepsIsCheckedWhereItIsStrict) {
  const auto constrained = [](const std::string& fields) {
    auto request = ParseChat(Chat(fields));
    EXPECT_THAT(request, IsOk()) << fields;
    EXPECT_THAT(Constrain(DecodeChatFormat(""), &*request), IsOk()) << fields;
    return *std::move(request);
  };
  const auto answer = [&](const char* strict, const char* schema) {
    return constrained(
        absl::StrCat(R"(,"response_format":{"type":"json_schema","json_schema":{"strict":)", strict,
                     R"(,"schema":)", schema, "}}"));
  };
  constexpr char kUnique[] = R"({"type":"array","uniqueItems":true})";
  EXPECT_TRUE(answer("true", kUnique).checks_answer);
  EXPECT_FALSE(answer("false", kUnique).checks_answer);
  EXPECT_FALSE(answer("true", R"({"type":"integer","minimum":-9007199254740991})").checks_answer);
  const auto tool = [&](const char* strict, const char* choice) {
    return constrained(
        absl::StrCat(R"(,"tools":[{"type":"function","function":{"name":"f","strict":)", strict,
                     R"(,"parameters":{"type":"object","properties":{"a":)", kUnique,
                     R"(}}}}],"tool_choice":")", choice, "\""));
  };
  EXPECT_THAT(tool("true", "required").checked_tools, ::testing::ElementsAre("f"));
  EXPECT_THAT(tool("false", "required").checked_tools, ::testing::IsEmpty());
  EXPECT_THAT(tool("true", "auto").checked_tools, ::testing::ElementsAre("f"));
}

TEST(OpenAiRequest, AnImpossibleConstraintNamesItsPath) {
  const struct {
    const char* fields;
    const char* param;
  } cases[] = {
      {R"(,"response_format":{"type":"xml"})", "response_format.type"},
      {R"(,"response_format":{"type":"json_schema"})", "response_format.json_schema"},
      {R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"properties":{"a":
          {"enum":[]}},"required":["a"]}}})",
       "response_format.json_schema.schema.properties.a.enum"},
      {R"(,"grammar":"root ::= root")", "grammar"},
      {R"(,"grammar":7)", "grammar"},
      {R"(,"guided_grammar":"root ::= root")", "guided_grammar"},
      {R"(,"guided_regex":"(")", "guided_regex"},
      {R"(,"structured_outputs":{"regex":"(?<=a)b"})", "structured_outputs.regex"},
      {R"(,"regex":"(?:a|b)*a(?:a|b){30}")", "regex"},
      {R"(,"guided_regex":"a","guided_json":{})", "guided_regex"},
      {R"(,"format":"xml")", "format"},
      {R"(,"format":"json","json_schema":{})", "format"},
      {R"j(,"response_format":{"type":"json_schema","json_schema":{"strict":true,"schema":{
          "type":"array","uniqueItems":true,"items":{"pattern":"(?<=a)b"}}}})j",
       "response_format.json_schema.schema.items.pattern"},
      {R"(,"guided_choice":[])", "guided_choice"},
      {R"(,"guided_choice":["a",1])", "guided_choice"},
      {R"(,"guided_json":"no schema")", "guided_json"},
      {R"(,"json_schema":{"type":"array","minItems":2,"maxItems":1})", "json_schema.minItems"},
      {R"(,"structured_outputs":7)", "structured_outputs"},
      {R"(,"grammar":"root ::= [a-z]","guided_choice":["a"])", "guided_choice"},
      {R"(,"json_schema":{},"response_format":{"type":"json_object"})", "response_format"},
      {R"(,"tool_choice":"required")", "tool_choice"},
      {R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function",
          "function":{"name":"g"}})",
       "tool_choice"},
      {R"(,"tools":{})", "tools"},
      {R"(,"tools":[{"type":"retrieval"}])", "tools[0].type"},
      // The same name, written in two ways.
      {R"(,"tools":[0],"tool\u0073":[{"type":"function","function":{"name":"f","parameters":{
          "type":"object"}}}])",
       "tools"},
      {R"(,"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{
          "name":"g"}}],"tool\u0073":[{"type":"function","function":{"name":"f"}}])",
       "tools"},
      {R"(,"tools":[{"type":"function","function":{"name":"a b"}}])", "tools[0].function.name"},
      {R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"array",
          "minItems":2,"maxItems":1}}}],"tool_choice":"required")",
       "tools[0].function.parameters.minItems"},
      {R"(,"parallel_tool_calls":1)", "parallel_tool_calls"},
      {R"(,"messages":[{"role":"tool","content":"4"}])", "messages[0].tool_call_id"},
      {R"(,"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
  };
  for (const auto& test : cases) {
    auto request = ParseChat(Chat(test.fields));
    const absl::Status status =
        request.ok() ? Constrain(DecodeChatFormat(""), &*request) : request.status();
    ASSERT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument)) << test.fields;
    EXPECT_EQ(ErrorJson(status)["param"], test.param);
  }
}

TEST(OpenAiRequest, ARefusedGrammarIsNamedOnce) {
  const struct {
    const char* grammar;
    const char* words;
  } cases[] = {
      {"root ::= (", "grammar: line 1: "},
      {"root ::= root", "grammar: the rule \"root\" "},
      {"other ::= \"a\"", "grammar: has no rule \"root\""},
  };
  for (const auto& test : cases) {
    const std::string body = nlohmann::json{{"prompt", "a"}, {"grammar", test.grammar}}.dump();
    EXPECT_THAT(ParseCompletion(body),
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(test.words)));
  }
}

TEST(OpenAiRequest, InvalidJsonIsRefused) {
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("\"a\""),
        std::string("{\"prompt\":\"\xFF\"}"), std::string("{\"prompt\":\"\\ud80\"}"),
        std::string("{\"a\":\0}", 7), std::string("{} {}")}) {
    EXPECT_THAT(ParseCompletion(body), StatusIs(absl::StatusCode::kInvalidArgument)) << body;
  }
}

TEST(OpenAiRequest, SaysWhereABodyIsInvalid) {
  const auto words = [](const std::string& body) {
    return ErrorJson(ParseCompletion(body).status())["message"].get<std::string>();
  };
  EXPECT_THAT(words("{\"prompt\":\"a\",\n}"), HasSubstr("line 2, column 1"));
  EXPECT_THAT(words("{\"temperature\":NaN}"), HasSubstr("column 16"));
  EXPECT_THAT(words(" \n"), HasSubstr("empty"));
  EXPECT_LT(words("{" + std::string(100'000, 'a')).size(), 500u);
}

TEST(OpenAiRequest, HalfACharacterIsReplacedAndTheRestIsTaken) {
  const auto prompt = [](const std::string& text) {
    const auto request = ParseCompletion(absl::StrCat(R"({"prompt":")", text, "\"}"));
    EXPECT_THAT(request, IsOk()) << text;
    return request.ok() ? request->prompts[0].text : "";
  };
  EXPECT_EQ(prompt(R"(a\ud83d)"), "a\uFFFD");
  EXPECT_EQ(prompt(R"(\uDE00b)"), "\uFFFDb");
  EXPECT_EQ(prompt(R"(\ud83d\n)"), "\uFFFD\n");
  EXPECT_EQ(prompt(R"(\ud83d\ud83d\ude00\ude00)"), "\uFFFD\U0001F600\uFFFD");
  EXPECT_EQ(prompt(R"(\\ud83d)"), "\\ud83d");  // no escape
  const auto request = ParseChat(
      Chat(R"(,"tools":[{"type":"function","function":{"name":"f","description":"\ud83d"}}])"));
  EXPECT_THAT(request, IsOk());
}

TEST(OpenAiRequest, ADeepBodyIsRefusedBeforeItOverflowsTheStack) {
  const std::string deep = std::string(1'000'000, '[');
  EXPECT_THAT(ParseCompletion(absl::StrCat(R"({"prompt":"a","x":)", deep)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nests")));
  const std::string quoted = absl::StrCat(R"({"prompt":"\")", std::string(1000, '['), "\"}");
  EXPECT_THAT(ParseCompletion(quoted), IsOk());
}

TEST(OpenAiRequest, ABodyOfMillionsOfValuesIsRefused) {
  std::string body = R"({"prompt":[1)";
  for (size_t i = 0; i < kApiJsonValuesMax; ++i) body += ",1";
  EXPECT_THAT(ParseCompletion(body + "]}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("values")));
}

TEST(OpenAiError, AgentsKnowAPromptThatIsTooLong) {
  const nlohmann::json error = ErrorJson(absl::OutOfRangeError(PromptTooLong(2004, 1024)));
  EXPECT_EQ(error["code"], "context_length_exceeded");
  for (const char* words :
       {"maximum context length is 1024", "context window", "prompt is too long", "2004 tokens"}) {
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(words));
  }
}

TEST(OpenAiError, AWrongTokenHasACode) {
  const HttpResponse response = WrongTokenResponse("no valid token", OpenAiError);
  EXPECT_EQ(response.status, 401);
  const auto error = nlohmann::json::parse(response.body)["error"];
  EXPECT_EQ(error["code"], "invalid_api_key");
  EXPECT_EQ(error["type"], "invalid_request_error");
}

TEST(OpenAiError, MapsStatusesToThoseOfHttp) {
  EXPECT_EQ(ErrorResponse(absl::InvalidArgumentError("x"), OpenAiError).status, 400);
  const HttpResponse unknown = ErrorResponse(absl::NotFoundError("no model"), OpenAiError);
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(nlohmann::json::parse(unknown.body)["error"]["code"], "model_not_found");
  EXPECT_EQ(ErrorResponse(absl::InternalError("x"), OpenAiError).status, 500);
  const absl::Status refused = WithRetryAfterMs(absl::ResourceExhaustedError("full"), 2500);
  EXPECT_EQ(ErrorResponse(refused, OpenAiError).status, 503);
  const HttpResponse full = ErrorResponse(AsOfOneClient(refused), OpenAiError);
  EXPECT_EQ(full.status, 429);
  EXPECT_THAT(full.headers,
              ::testing::Contains(std::pair<std::string, std::string>("Retry-After", "2")));
  const HttpResponse away = ErrorResponse(absl::UnavailableError("away"), OpenAiError);
  EXPECT_EQ(away.status, 503);
  EXPECT_EQ(away.headers[0].first, "Retry-After");
}

}  // namespace
}  // namespace strata
