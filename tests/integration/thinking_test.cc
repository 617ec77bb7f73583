// Models whose templates teach thoughts and calls in tags, over real nodes: thoughts have budgets,
// answers behind them have grammars, and calls come as clients expect them.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "shard/model/gguf.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::strata::testing::HttpReply;
using Json = nlohmann::json;

// Thinks, unless it is told not to, and calls as Qwen3-Coder does.
constexpr char kTemplate[] =
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>\n"
    "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n"
    "{% endfor %}</function>\n</tool_call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking is defined and not "
    "enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}";

class Thinking : public ::strata::testing::TwoNodes {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TwoNodes::SetUp());
    std::ifstream in(STRATA_DEMO_MODEL, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(in), {});
    auto header = ParseGgufHeader(bytes);
    ASSERT_TRUE(header.ok()) << header.status();
    const std::string data = bytes.substr(header->data_offset);
    header->Set("tokenizer.chat_template", GgufValue::String(kTemplate));
    header->Set("general.name", GgufValue::String("thinker"));
    const std::string path = folder_ + "/thinker.gguf";
    std::ofstream(path, std::ios::binary) << SerializeGgufHeader(*header) << data;
    const Json loaded = Run(0, {"load", path, "--seqs", "4", "--ctx", "1024", "--json"});
    ASSERT_TRUE(loaded.is_object()) << loaded;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Json Choice(const Json& fields) {
    Json body = {{"model", "thinker"},
                 {"max_tokens", 200},
                 {"temperature", 0},
                 {"messages", Json::array({{{"role", "user"}, {"content", "The old captain"}}})}};
    body.update(fields);
    const HttpReply reply = Post(0, "/v1/chat/completions", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    const Json json = Json::parse(reply.body, nullptr, false);
    if (json.is_object() && json.contains("choices")) {
      thought_tokens_ = json["usage"]["completion_tokens_details"]["reasoning_tokens"];
      return json["choices"][0];
    }
    return {{"message", Json::object()}, {"finish_reason", ""}};
  }

  const std::string folder_ = ::strata::testing::MakeTestFolder();
  int thought_tokens_ = 0;  // of the last Choice()
};

const Json kTool = {{"type", "function"},
                    {"function",
                     {{"name", "mcp/weather:get"},
                      {"parameters",
                       {{"type", "object"},
                        {"properties",
                         {{"city", {{"type", "string"}, {"enum", {"Rome", "Oslo"}}}},
                          {"days", {{"type", "integer"}}}}},
                        {"required", {"city", "days"}}}}}}};

TEST_F(Thinking, IsToldApartEndedAndFollowedByAnAnswer) {
  // A grammar of the client's is that of the whole output.
  const Json thought = Choice({{"grammar", "root ::= \"Hm, a greeting.\\n</think>\\n\\nHello!\""}});
  EXPECT_EQ(thought["message"].value("reasoning_content", ""), "Hm, a greeting.") << thought;
  EXPECT_EQ(thought["message"].value("content", ""), "Hello!") << thought;

  const Json budget =
      Choice({{"thinking", {{"type", "enabled"}, {"budget_tokens", 6}}}, {"max_tokens", 14}});
  EXPECT_EQ(thought_tokens_, 6) << budget;  // which may be nothing but line ends
  EXPECT_NE(budget["message"].value("content", ""), "") << budget;
  EXPECT_EQ(budget["finish_reason"], "length");

  const Json schema = {
      {"type", "object"}, {"properties", {{"age", {{"type", "integer"}}}}}, {"required", {"age"}}};
  const Json answer = Choice(
      {{"thinking_budget", 6},
       {"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}}}});
  EXPECT_EQ(thought_tokens_, 6) << answer;
  const Json parsed = Json::parse(answer["message"].value("content", ""), nullptr, false);
  EXPECT_TRUE(parsed.is_object() && parsed["age"].is_number_integer()) << answer;

  const Json off = Choice({{"enable_thinking", false}, {"max_tokens", 8}});
  EXPECT_FALSE(off["message"].contains("reasoning_content")) << off;
  EXPECT_EQ(thought_tokens_, 0) << off;
  EXPECT_NE(off["message"].value("content", ""), "") << off;
}

TEST_F(Thinking, IsFollowedByACallInTheTemplatesForm) {
  const Json choice = Choice({{"thinking_budget", 6},
                              {"tools", Json::array({kTool})},
                              {"tool_choice", "required"},
                              {"parallel_tool_calls", false}});
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
  const Json& function = choice["message"]["tool_calls"][0]["function"];
  EXPECT_EQ(function["name"], "mcp/weather:get");
  const Json arguments = Json::parse(function["arguments"].get<std::string>(), nullptr, false);
  EXPECT_TRUE(arguments["city"] == "Rome" || arguments["city"] == "Oslo") << choice;
  EXPECT_TRUE(arguments["days"].is_number_integer()) << choice;
  EXPECT_TRUE(choice["message"]["content"].is_null()) << choice;

  for (const int tokens : {1, 5, 9, 20}) {
    const Json cut = Choice({{"enable_thinking", false},
                             {"tools", Json::array({kTool})},
                             {"tool_choice", "any"},
                             {"max_tokens", tokens}});
    const Json& content = cut["message"]["content"];
    EXPECT_TRUE(content.is_null() || content == "") << cut;
    EXPECT_EQ(cut["finish_reason"], "length") << cut;
  }
}

TEST_F(Thinking, CallsOfOtherFamiliesAreReadToo) {
  for (
      const char* grammar :
      {R"(root ::= "<tool_call>\n<function=mcp/weather:get>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>")",
       R"(root ::= "[TOOL_CALLS]mcp/weather:get[ARGS]{\"city\": \"Rome\"}")",
       R"(root ::= "<tool_call>{\"name\": \"mcp/weather:get\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>")"}) {
    const Json choice =
        Choice({{"enable_thinking", false}, {"tools", Json::array({kTool})}, {"grammar", grammar}});
    EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice;
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"city": "Rome"})");
  }
}

}  // namespace
}  // namespace strata
