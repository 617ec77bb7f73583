// Calls that a form's grammar allows are read back by its reader, whatever the arguments.
#include "node/chat/tool_call_grammar.h"

#include <random>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/chat/harmony_reader.h"
#include "node/chat/known_tool_calls.h"
#include "node/chat/tool_call_reader.h"
#include "tests/support/gbnf_text.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using Json = nlohmann::ordered_json;

constexpr char kSchema[] = R"({"type":"object","properties":{
    "text":{"type":"string"}, "word":{"enum":["a","b c"]}, "count":{"type":"integer"},
    "on":{"type":"boolean"}, "list":{"type":"array","items":{"type":"string"},"maxItems":2},
    "place":{"$ref":"#/$defs/place"}},
    "required":["text","count"],
    "$defs":{"place":{"type":"object","properties":{"x":{"type":"number"}},"required":["x"]}}})";

ChatTools Tools() {
  return {
      .list = {{.name = "write", .json = "", .parameters = kSchema},
               {.name = "mcp/server:look", .json = "", .parameters = ""},
               {.name = "stop", .json = "", .parameters = R"({"type":"object","properties":{}})"}}};
}

GbnfGrammar GrammarOf(const ToolCallForm& form) {
  JsonGrammar grammar;
  std::vector<CallableTool> tools;
  for (const ChatTool& tool : Tools().list) {
    tools.push_back({.name = tool.name, .parameters = tool.parameters, .path = "p"});
  }
  auto calls = ToolCallGrammar(form, tools, /*several=*/true, &grammar);
  EXPECT_THAT(calls, IsOk());
  const auto text = grammar.Finish(*std::move(calls), "tools");
  EXPECT_THAT(text, IsOk());
  auto parsed = ParseGbnf(*text);
  EXPECT_THAT(parsed, IsOk()) << *text;
  EXPECT_THAT(CheckGbnf(*parsed), IsOk()) << *text;
  return *parsed;
}

struct Call {
  std::string name, arguments;
};
std::vector<Call> Read(const ToolCallForm& form, const std::string& text, size_t bytes) {
  ToolCallReader reader({.forms = {form}, .tools = ReadableTools(Tools())});
  std::vector<Call> calls;
  const auto take = [&](const ToolPiece& piece) {
    EXPECT_EQ(piece.content, "") << text;
    for (const ToolPiece::Call& call : piece.calls) {
      if (!call.name.empty()) calls.push_back({.name = call.name, .arguments = ""});
      if (call.index < calls.size()) calls[call.index].arguments += call.arguments;
    }
  };
  for (size_t at = 0; at < text.size(); at += bytes) take(reader.Add(text.substr(at, bytes)));
  take(reader.Finish(/*is_cut=*/false));
  return calls;
}

TEST(ToolCallGrammar, WhatItAllowsIsReadBackInPiecesOfAnySize) {
  std::vector<ToolCallForm> forms = KnownToolCallForms();
  forms.push_back({.separator = "; ",
                   .name_open = R"({"name": ")",
                   .name_close = R"(", "parameters": )",
                   .arguments_close = "}",
                   .name_key = "name",
                   .arguments_key = "parameters"});
  std::mt19937 random(42);
  for (const ToolCallForm& form : forms) {
    const GbnfGrammar grammar = GrammarOf(form);
    const GbnfText texts(grammar);
    for (int i = 0; i < 20; ++i) {
      const std::string text =
          texts.Write([&](uint32_t n) { return static_cast<uint32_t>(random() % n); }, 200);
      std::vector<Call> whole;
      for (size_t bytes = text.size(); bytes > 0; bytes = bytes / 2) {
        const std::vector<Call> calls = Read(form, text, bytes);
        ASSERT_FALSE(calls.empty()) << text;
        for (const Call& call : calls) {
          const Json arguments = Json::parse(call.arguments, nullptr, false);
          ASSERT_TRUE(arguments.is_object()) << text << " gives " << call.arguments;
          if (call.name != "write") continue;
          EXPECT_TRUE(arguments["text"].is_string()) << text << " gives " << call.arguments;
          EXPECT_TRUE(arguments["count"].is_number_integer()) << text;
          EXPECT_TRUE(!arguments.contains("on") || arguments["on"].is_boolean()) << text;
          EXPECT_TRUE(!arguments.contains("list") || arguments["list"].is_array()) << text;
          EXPECT_TRUE(!arguments.contains("place") || arguments["place"].is_object()) << text;
        }
        if (bytes == text.size()) whole = calls;
        ASSERT_EQ(calls.size(), whole.size()) << text;
        for (size_t k = 0; k < calls.size(); ++k) {
          EXPECT_EQ(calls[k].name, whole[k].name);
          EXPECT_EQ(calls[k].arguments, whole[k].arguments) << bytes << ": " << text;
        }
      }
    }
  }
}

TEST(ToolCallGrammar, OfHarmonyIsReadBack) {
  const GbnfGrammar grammar = GrammarOf(HarmonyToolCalls());
  const GbnfText texts(grammar);
  EXPECT_TRUE(
      texts.Reads("<|channel|>commentary to=functions.stop <|constrain|>json<|message|>{}"));
  HarmonyReader reader("<|start|>assistant", ReadableTools(Tools()));
  const auto piece =
      reader.Add("<|channel|>commentary to=functions.stop <|constrain|>json<|message|>{}");
  ASSERT_EQ(piece.tools.calls.size(), 1u);
  EXPECT_EQ(piece.tools.calls[0].name, "stop");
}

TEST(ToolCallGrammar, ATextMayHaveTagsButNotTheMarkBehindIt) {
  const ToolCallForm& form = ToolCallFormNamedIn("<tool_call><function=<parameter=");
  const GbnfGrammar grammar = GrammarOf(form);
  const GbnfText texts(grammar);
  const auto call = [](const std::string& text) {
    return absl::StrCat("<tool_call>\n<function=write>\n<parameter=text>\n", text,
                        "\n</parameter>\n<parameter=count>\n1\n</parameter>\n</function>\n"
                        "</tool_call>");
  };
  EXPECT_TRUE(texts.Reads(call("<p>a < b</p>\n</parame")));
  EXPECT_TRUE(texts.Reads(call("")));
  EXPECT_FALSE(texts.Reads(call("a\n</parameter>\nb")));
}

TEST(ToolCallGrammar, RequiredArgumentsAreThereAndOthersMayBe) {
  const ToolCallForm& form = ToolCallFormNamedIn("<|tool_list_start|>");
  const GbnfGrammar grammar = GrammarOf(form);
  const GbnfText texts(grammar);
  const auto call = [](const std::string& arguments) {
    return absl::StrCat("<|tool_call_start|>[write(", arguments, ")]<|tool_call_end|>");
  };
  EXPECT_TRUE(texts.Reads(call("text=\"a\", count=1")));
  EXPECT_TRUE(texts.Reads(call("text=\"a\", word=\"b c\", count=1, on=True")));
  EXPECT_FALSE(texts.Reads(call("text=\"a\"")));
  EXPECT_FALSE(texts.Reads(call("count=1")));
}

}  // namespace
}  // namespace strata
