#include "node/chat/tool_call_reader.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/chat/known_tool_calls.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Output {
  std::string content;
  std::vector<std::string> calls;  // "name arguments"
};

std::vector<ReadableTool> Tools() {
  return ReadableTools({.list = {{.name = "sum", .json = "", .parameters = ""},
                                 {.name = "sum_up", .json = "", .parameters = ""},
                                 {.name = "mcp/server:get.weather", .json = "", .parameters = R"(
      {"type":"object","properties":{"city":{"type":"string"}}})"}}});
}

Output Read(ToolCallReader* reader, const std::string& text, size_t bytes, bool is_cut = false) {
  Output output;
  const auto take = [&output](const ToolPiece& piece) {
    output.content += piece.content;
    for (const ToolPiece::Call& call : piece.calls) {
      EXPECT_EQ(!call.name.empty(), call.index == output.calls.size());
      if (!call.name.empty()) output.calls.push_back(call.name + " ");
      ASSERT_LT(call.index, output.calls.size());
      output.calls[call.index] += call.arguments;
    }
  };
  for (size_t at = 0; at < text.size(); at += bytes) take(reader->Add(text.substr(at, bytes)));
  take(reader->Finish(is_cut));
  EXPECT_EQ(reader->calls(), output.calls.size());
  return output;
}

// A model that was trained on none of the forms in particular.
ToolCallReader::Options AnyForm() { return {.forms = KnownToolCallForms(), .tools = Tools()}; }

ToolCallForm Bare() {
  return {.separator = "; ",
          .name_open = R"({"name": ")",
          .name_close = R"(", "parameters": )",
          .arguments_close = "}",
          .name_key = "name",
          .arguments_key = "parameters"};
}

struct Case {
  std::string text, content;
  std::vector<std::string> calls;
};
const Case kCases[] = {
    {"Just words, a < b, <tool> and <tool_cal", "Just words, a < b, <tool> and <tool_cal", {}},
    {"<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": [1, 2], \"s\": \"}\\\"{\"}}\n"
     "</tool_call>",
     "",
     {"sum {\"a\": [1, 2], \"s\": \"}\\\"{\"}"}},
    {"I add.\n\n<tool_call>{\"name\":\"sum\",\"arguments\":{}}</tool_call>\n<tool_call>\n"
     "{\"name\":\"sum_up\",\"arguments\":{\"at\":\"B\"} }\n</tool_call>\n",
     "I add.",
     {"sum {}", "sum_up {\"at\":\"B\"}"}},
    {"<tool_call>{\"arguments\":{\"a\":1},\"name\":\"sum\"}</tool_call>", "", {"sum {\"a\":1}"}},
    {"<tool_call>{\"name\":\"sum\",\"arguments\":{\"a\":", "", {"sum {\"a\":"}},
    {"<tool_call>{\"name\":\"other\",\"arguments\":{}}</tool_call>",
     "<tool_call>{\"name\":\"other\",\"arguments\":{}}</tool_call>",
     {}},
    {"<tool_call>none", "<tool_call>none", {}},
    {"a\n\nb", "a\n\nb", {}},
    {"Say {\"name\": \"sum\", \"parameters\": {}}",
     "Say {\"name\": \"sum\", \"parameters\": {}}",
     {}},
    // Qwen3-Coder, with and without its outer mark.
    {"<tool_call>\n<function=mcp/server:get.weather>\n<parameter=city>\nRome\n</parameter>\n"
     "</function>\n</tool_call>\n<tool_call>\n<function=sum>\n</function>\n</tool_call>",
     "",
     {"mcp/server:get.weather {\"city\": \"Rome\"}", "sum {}"}},
    {"Now.\n<function=sum><parameter=a>1</parameter></function></tool_call>",
     "Now.",
     {"sum {\"a\": 1}"}},
    {"<function=other>\n</function>", "<function=other>\n</function>", {}},
    // GLM.
    {"<tool_call>sum\n<arg_key>a</arg_key>\n<arg_value>[1]</arg_value>\n</tool_call>\n"
     "<tool_call>sum_up\n<arg_key>b</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
     "",
     {"sum {\"a\": [1]}", "sum_up {\"b\": \"x\"}"}},
    {"<tool_call>sum<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>Done",
     "Done",
     {"sum {\"a\": 1}"}},
    // Mistral, older and newer.
    {"[TOOL_CALLS] [{\"name\": \"sum\", \"arguments\": {\"a\": 1}}, {\"name\": \"sum_up\", "
     "\"arguments\": {}}]",
     "",
     {"sum {\"a\": 1}", "sum_up {}"}},
    {"[TOOL_CALLS]sum[ARGS]{\"a\": 1}[TOOL_CALLS]sum_up[ARGS]{}",
     "",
     {"sum {\"a\": 1}", "sum_up {}"}},
    {"[1] is a list [TOOL", "[1] is a list [TOOL", {}},
    // MiniMax, DeepSeek.
    {"<minimax:tool_call>\n<invoke name=\"sum\">\n<parameter name=\"a\">1</parameter>\n</invoke>\n"
     "<invoke name=\"sum_up\">\n</invoke>\n</minimax:tool_call>",
     "",
     {"sum {\"a\": 1}", "sum_up {}"}},
    {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>sum\n```json\n{\"a\":1}\n```"
     "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>sum_up\n```json\n{}\n```"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "",
     {"sum {\"a\":1}", "sum_up {}"}},
    {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>sum<｜tool▁sep｜>{\"a\":1}<｜tool▁call▁end｜>"
     "<｜tool▁calls▁end｜>",
     "",
     {"sum {\"a\":1}"}},
    // Kimi.
    {"<|tool_calls_section_begin|><|tool_call_begin|>functions.sum:0<|tool_call_argument_begin|>"
     "{\"a\":1}<|tool_call_end|><|tool_call_begin|>functions.sum_up:1"
     "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     "",
     {"sum {\"a\":1}", "sum_up {}"}},
    // Command-R, Gemma, LFM2, Nemotron, Phi, Seed.
    {"<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"sum\", \"parameters\": "
     "{\"a\": 1}}\n]<|END_ACTION|>",
     "",
     {"sum {\"a\": 1}"}},
    {"<|tool_call>call:sum{a:<|\"|>x<|\"|>}<tool_call|>", "", {"sum {\"a\": \"x\"}"}},
    {"<|tool_call_start|>[sum(a=1), sum_up(b=\"x\")]<|tool_call_end|>It is",
     "It is",
     {"sum {\"a\": 1}", "sum_up {\"b\": \"x\"}"}},
    {"<TOOLCALL>[{\"name\": \"sum\", \"arguments\": {}}]</TOOLCALL>", "", {"sum {}"}},
    {"<|tool_call|>[{\"name\": \"sum\", \"arguments\": {}}]<|/tool_call|>", "", {"sum {}"}},
    {"<seed:tool_call>\n<function=sum>\n<parameter=a>1</parameter>\n</function>\n</seed:tool_call>",
     "",
     {"sum {\"a\": 1}"}},
    {"<|python_tag|>{\"type\": \"function\", \"name\": \"sum\", \"parameters\": {}}",
     "",
     {"sum {}"}},
    {"```tool_code\nsum(a=1)\n```", "", {"sum {\"a\": 1}"}},
    {"<function=sum>{\"a\": 1}</function>", "", {"sum {\"a\": 1}"}},
};

TEST(ToolCallReader, FindsCallsHoweverTheOutputIsSplit) {
  for (const Case& test : kCases) {
    for (size_t bytes = 1; bytes <= test.text.size(); ++bytes) {
      ToolCallReader reader(AnyForm());
      const Output output = Read(&reader, test.text, bytes);
      EXPECT_EQ(output.content, test.content) << bytes << ": " << test.text;
      EXPECT_EQ(output.calls, test.calls) << bytes << ": " << test.text;
    }
  }
}

TEST(ToolCallReader, OutputThatBeginsWithABareObjectMayBeACall) {
  const Case cases[] = {
      {"{\"name\": \"sum\", \"parameters\": {\"a\": 1}}", "", {"sum {\"a\": 1}"}},
      {" {\"type\":\"function\",\"name\":\"sum\",\"parameters\":{}}; "
       "{\"name\":\"sum_up\",\"parameters\":{}}",
       "",
       {"sum {}", "sum_up {}"}},
      {"{\"answer\": 1, \"name\": \"sum\"}", "{\"answer\": 1, \"name\": \"sum\"}", {}},
      {"Say {\"name\": \"sum\", \"parameters\": {}}",
       "Say {\"name\": \"sum\", \"parameters\": {}}",
       {}},
  };
  for (const Case& test : cases) {
    for (size_t bytes = 1; bytes <= test.text.size(); ++bytes) {
      ToolCallReader reader({.forms = {Bare()}, .tools = Tools()});
      const Output output = Read(&reader, test.text, bytes);
      EXPECT_EQ(output.content, test.content) << bytes << ": " << test.text;
      EXPECT_EQ(output.calls, test.calls) << bytes << ": " << test.text;
    }
  }
}

TEST(ToolCallReader, ACutCallIsNeverContent) {
  for (const Case& test : kCases) {
    if (test.calls.empty()) continue;
    for (size_t size = test.content.size() + 5; size < test.text.size(); ++size) {
      ToolCallReader reader(AnyForm());
      const Output output = Read(&reader, test.text.substr(0, size), 3, /*is_cut=*/true);
      EXPECT_EQ(output.content, test.content.substr(0, output.content.size()))
          << test.text.substr(0, size);
    }
  }
}

TEST(ToolCallReader, EmitsArgumentsAsTheyCome) {
  ToolCallReader reader(AnyForm());
  EXPECT_EQ(reader.Add("One ").content, "One");
  EXPECT_EQ(reader.Add("moment.").content, " moment.");
  EXPECT_THAT(reader.Add("<tool_call>{\"name\":\"sum\",").calls, IsEmpty());
  ToolPiece piece = reader.Add("\"arguments\":{\"a\"");
  ASSERT_EQ(piece.calls.size(), 1u);
  EXPECT_EQ(piece.calls[0].name, "sum");
  EXPECT_EQ(piece.calls[0].arguments, "{\"a\"");
  piece = reader.Add(":12");
  ASSERT_EQ(piece.calls.size(), 1u);
  EXPECT_EQ(piece.calls[0].name, "");
  EXPECT_EQ(piece.calls[0].arguments, ":12");
}

TEST(ToolCallReader, EndsAfterTheMaximumNumberOfCalls) {
  const std::string call = "<tool_call>{\"name\":\"sum\",\"arguments\":{}}</tool_call>";
  ToolCallReader::Options options = AnyForm();
  options.calls_max = 1;
  ToolCallReader reader(options);
  EXPECT_THAT(Read(&reader, call + call + "more", 5).calls, ElementsAre("sum {}"));
  EXPECT_TRUE(reader.done());
}

}  // namespace
}  // namespace strata
