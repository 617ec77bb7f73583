#include "node/chat/tool_calls.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Output {
  std::string content;
  std::vector<std::string> calls;  // "name(arguments)"
  size_t pieces = 0;               // of calls
};

// The text in pieces of so many bytes.
Output Read(ToolForm form, const std::string& text, size_t bytes, uint32_t calls_max = 0) {
  ToolReader reader({.form = form, .names = {"sum", "weather"}, .calls_max = calls_max});
  Output output;
  const auto take = [&output](const ToolPiece& piece) {
    output.content += piece.content;
    for (const ToolPiece::Call& call : piece.calls) {
      ++output.pieces;
      EXPECT_EQ(!call.name.empty(), call.index == output.calls.size());
      if (!call.name.empty()) output.calls.push_back(call.name + " ");
      EXPECT_EQ(call.index + 1, output.calls.size());
      if (call.index < output.calls.size()) output.calls[call.index] += call.arguments;
    }
  };
  for (size_t at = 0; at < text.size(); at += bytes) take(reader.Add(text.substr(at, bytes)));
  take(reader.Finish());
  EXPECT_EQ(reader.calls(), output.calls.size());
  return output;
}

struct Case {
  ToolForm form;
  std::string text;
  std::string content;
  std::vector<std::string> calls;
};

const Case kCases[] = {
    {ToolForm::kTagged,
     "Just words, a < b, <tool> and <tool_cal",
     "Just words, a < b, <tool> and <tool_cal",
     {}},
    {ToolForm::kTagged,
     "<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": [1, 2], \"s\": "
     "\"}\\\"{\"}}\n</tool_call>",
     "",
     {"sum {\"a\": [1, 2], \"s\": \"}\\\"{\"}"}},
    {ToolForm::kTagged,
     "I add.\n\n<tool_call>{\"name\":\"sum\",\"arguments\":{}}</tool_call>\n<tool_call>\n"
     "{\"name\":\"weather\",\"arguments\":{\"at\":\"B\"} }\n</tool_call>\n",
     "I add.",
     {"sum {}", "weather {\"at\":\"B\"}"}},
    {ToolForm::kTagged,
     "<tool_call>{\"arguments\":{\"a\":1},\"name\":\"sum\"}</tool_call>",
     "",
     {"sum {\"a\":1}"}},
    {ToolForm::kTagged,
     "<tool_call>{\"name\":\"sum\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>",
     "",
     {"sum {\"a\":1}"}},
    {ToolForm::kTagged, "<tool_call>{\"name\":\"sum\"}</tool_call>", "", {"sum {}"}},
    {ToolForm::kTagged, "<tool_call>{\"name\":\"sum\",\"arguments\":{\"a\":", "", {"sum {\"a\":"}},
    {ToolForm::kTagged,
     "<tool_call>{\"name\":\"other\",\"arguments\":{}}</tool_call>",
     "<tool_call>{\"name\":\"other\",\"arguments\":{}}</tool_call>",
     {}},
    {ToolForm::kTagged, "<tool_call>none", "<tool_call>none", {}},
    {ToolForm::kTagged, "a\n\nb", "a\n\nb", {}},
    {ToolForm::kBare, "{\"name\": \"sum\", \"parameters\": {\"a\": 1}}", "", {"sum {\"a\": 1}"}},
    {ToolForm::kBare,
     "{\"type\":\"function\",\"name\":\"sum\",\"parameters\":{}}; "
     "{\"name\":\"weather\",\"parameters\":{}}",
     "",
     {"sum {}", "weather {}"}},
    {ToolForm::kBare,
     "{\"answer\": 1, \"name\": \"sum\"}",
     "{\"answer\": 1, \"name\": \"sum\"}",
     {}},
    {ToolForm::kBare,
     "Say {\"name\": \"sum\", \"parameters\": {}}",
     "Say {\"name\": \"sum\", \"parameters\": {}}",
     {}},
    {ToolForm::kMistral,
     "[TOOL_CALLS] [{\"name\": \"sum\", \"arguments\": {\"a\": 1}}, {\"name\": \"weather\", "
     "\"arguments\": {}}]",
     "",
     {"sum {\"a\": 1}", "weather {}"}},
    // The mark is a control token, which says nothing.
    {ToolForm::kMistral,
     "[{\"name\": \"sum\", \"arguments\": {\"a\": 1}}]",
     "",
     {"sum {\"a\": 1}"}},
    {ToolForm::kMistral, "[1] is a list", "[1] is a list", {}},
};

TEST(ToolReader, FindsCallsHoweverTheOutputIsSplit) {
  for (const Case& test : kCases) {
    for (const size_t bytes : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, test.text.size()}) {
      const Output output = Read(test.form, test.text, bytes);
      EXPECT_EQ(output.content, test.content) << bytes << ": " << test.text;
      EXPECT_EQ(output.calls, test.calls) << bytes << ": " << test.text;
    }
  }
}

TEST(ToolReader, EmitsArgumentsAsTheyCome) {
  ToolReader reader({.form = ToolForm::kTagged, .names = {"sum"}});
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

TEST(ToolReader, EndsAfterTheMaximumNumberOfCalls) {
  const std::string call = "<tool_call>{\"name\":\"sum\",\"arguments\":{}}</tool_call>";
  EXPECT_THAT(Read(ToolForm::kTagged, call + call + "more", 5, 1).calls, ElementsAre("sum {}"));
  ToolReader reader({.form = ToolForm::kTagged, .names = {"sum"}, .calls_max = 1});
  reader.Add(call);
  EXPECT_TRUE(reader.done());
}

TEST(ToolCallGrammar, MatchesCallsThatTheReaderReads) {
  for (const ToolForm form : {ToolForm::kTagged, ToolForm::kBare, ToolForm::kMistral}) {
    JsonGrammar grammar;
    auto calls =
        ToolCallGrammar(form, {{.name = "sum", .parameters = "{\"type\":\"object\"}", .path = "p"}},
                        /*several=*/true, &grammar);
    ASSERT_TRUE(calls.ok()) << calls.status();
    const auto text = grammar.Finish(*std::move(calls), "tools");
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_TRUE(ParseGbnf(*text).ok()) << *text;
  }
}

TEST(ToolForm, IsTheFormThatTheTemplateTeaches) {
  EXPECT_EQ(ToolFormOf("... <tool_call>\n{\"name\" ..."), ToolForm::kTagged);
  EXPECT_EQ(ToolFormOf("{{ '[TOOL_CALLS] [' }}"), ToolForm::kMistral);
  EXPECT_EQ(ToolFormOf("{{ '<|python_tag|>' }}"), ToolForm::kBare);
  EXPECT_EQ(ToolFormOf("{{ messages }}"), ToolForm::kTagged);
}

}  // namespace
}  // namespace strata
