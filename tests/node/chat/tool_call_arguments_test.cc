#include "node/chat/tool_call_arguments.h"

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/chat/known_tool_calls.h"

namespace strata {
namespace {

// The known form whose calls begin so.
const ToolCallForm& FormOf(const std::string& call_open, const std::string& section_open) {
  for (const ToolCallForm& form : KnownToolCallForms()) {
    if (form.call_open == call_open && form.section_open == section_open) return form;
  }
  ADD_FAILURE() << call_open;
  return KnownToolCallForms()[0];
}
const ToolCallForm& Lines() { return FormOf("<tool_call>\n<function=", ""); }
const ToolCallForm& Python() { return FormOf("", "<|tool_call_start|>["); }
const ToolCallForm& Braces() { return FormOf("<|tool_call>call:", ""); }

std::vector<ToolParameter> Parameters() {
  return *ParametersOf(SchemaJson::parse(R"({"type":"object","properties":{
      "text":{"type":"string"}, "count":{"type":"integer"}, "on":{"type":"boolean"},
      "list":{"type":"array"}, "maybe":{"type":["string","null"]},
      "ref":{"$ref":"#/$defs/name"}}, "$defs":{"name":{"type":"string"}}})"));
}

struct Output {
  std::string json, rest;
};
Output Read(const ToolCallForm& form, const std::vector<ToolParameter>& parameters,
            const std::string& text, size_t bytes) {
  const auto reader = NewToolArgumentsReader(form, parameters);
  Output output;
  bool done = false;
  for (size_t at = 0; at < text.size(); at += bytes) {
    output.rest += text.substr(at, bytes);
    if (!done) done = reader->Read(&output.rest, &output.json);
  }
  EXPECT_TRUE(done) << text;
  return output;
}

void ExpectReads(const ToolCallForm& form, const std::string& text, const std::string& json,
                 const std::string& rest) {
  for (size_t bytes = 1; bytes <= text.size(); ++bytes) {
    const Output output = Read(form, Parameters(), text, bytes);
    EXPECT_EQ(output.json, json) << bytes << ": " << text;
    // Space before what follows is nobody's.
    EXPECT_EQ(absl::StripLeadingAsciiWhitespace(output.rest), rest) << bytes << ": " << text;
  }
}

TEST(ToolArguments, TaggedValuesAreTypedByTheSchema) {
  ExpectReads(
      Lines(),
      "<parameter=text>\n12\n\"x\" \\ </b>\n\n</parameter>\n<parameter=count>\n12\n"
      "</parameter>\n<parameter=on>\nTrue\n</parameter>\n<parameter=list>\n[1, {\"a\": 2}]\n"
      "</parameter>\n</function>",
      R"({"text": "12\n\"x\" \\ </b>\n", "count": 12, "on": true, "list": [1, {"a": 2}]})",
      "</function>");
  ExpectReads(Lines(), "<parameter=maybe>\nnull\n</parameter>\n</function>", R"({"maybe": null})",
              "</function>");
  ExpectReads(Lines(), "<parameter=maybe>\n12\n</parameter>\n</function>", R"({"maybe": "12"})",
              "</function>");
  ExpectReads(Lines(), "<parameter=ref>\n12\n</parameter>\n</function>", R"({"ref": "12"})",
              "</function>");
  ExpectReads(Lines(), "<parameter=count>\nmany\n</parameter></function>", R"({"count": "many"})",
              "</function>");
}

TEST(ToolArguments, TaggedListsMayBePythons) {
  const auto lines = [](const std::string& list) {
    return absl::StrCat("<parameter=list>\n", list, "\n</parameter>\n</function>");
  };
  ExpectReads(Lines(), lines(R"([True, {'it\'s': None}, "a'b", ('x', -1.5e3)])"),
              R"({"list": [true, {"it's": null}, "a'b", ["x", -1.5e3]]})", "</function>");
  // No list of either.
  ExpectReads(Lines(), lines("[draft] of it"), R"({"list": "[draft] of it"})", "</function>");
  ExpectReads(Lines(), lines("[Draft]"), R"({"list": "[Draft]"})", "</function>");
  ExpectReads(Lines(), lines("['open"), R"({"list": "['open"})", "</function>");
}

TEST(ToolArguments, WithoutASchemaTaggedValuesAreWhatTheyLookLike) {
  ExpectReads(Lines(), "<parameter=other>\n{\"a\": 1}\n</parameter>\n</function>",
              R"({"other": {"a": 1}})", "</function>");
  ExpectReads(Lines(), "<parameter=other>\nsome text\n</parameter>\n</function>",
              R"({"other": "some text"})", "</function>");
  ExpectReads(Lines(), "<parameter=other>\n\"quoted\"\n</parameter>\n</function>",
              R"({"other": "quoted"})", "</function>");
  ExpectReads(Lines(), "</function>", "{}", "</function>");
}

TEST(ToolArguments, MarksTellTypesWhereTheFormHasThem) {
  const ToolCallForm form = FormOf("<｜DSML｜invoke name=\"", "<｜DSML｜function_calls>\n");
  ExpectReads(form,
              "<｜DSML｜parameter name=\"a\" string=\"true\">1</｜DSML｜parameter>\n"
              "<｜DSML｜parameter name=\"b\" string=\"false\">[1]</｜DSML｜parameter>\n"
              "</｜DSML｜invoke>",
              R"({"a": "1", "b": [1]})", "</｜DSML｜invoke>");
}

TEST(ToolArguments, AStringIsPassedOnAsItComes) {
  const std::vector<ToolParameter> parameters = Parameters();
  const auto reader = NewToolArgumentsReader(Lines(), parameters);
  std::string pending = "<parameter=text>\nWhat a ", json;
  EXPECT_FALSE(reader->Read(&pending, &json));
  EXPECT_EQ(json, R"({"text": "What a )");
  pending += "\"day\"";
  EXPECT_FALSE(reader->Read(&pending, &json));
  EXPECT_EQ(json, R"({"text": "What a \"day\")");
}

TEST(ToolArguments, OfPythonBecomeJson) {
  ExpectReads(
      Python(),
      R"(a=1, b="x, \"y\"=[", c='it\'s', d=[True, None, -1.5e3, [], {}], e={"k": 'v', 'n': {}})])",
      R"({"a": 1, "b": "x, \"y\"=[", "c": "it's", "d": [true, null, -1.5e3, [], {}], "e": {"k": "v", "n": {}}})",
      "]");
  ExpectReads(Python(), ")]", "{}", "]");
  ExpectReads(Python(), "a = word , b=\"line\\n\")", R"({"a": "word", "b": "line\n"})", "");
  ExpectReads(Python(), R"(a="caf\u00e9 \user \u12"))", R"({"a": "caf\u00e9 \\user \\u12"})", "");
}

TEST(ToolArguments, OfGemmaBecomeJson) {
  ExpectReads(Braces(),
              R"(city:<|"|>Rome "x" {}<|"|>,days:7,deep:{a:[1,<|"|>b<|"|>],c:true}}<tool_call|>)",
              R"({"city": "Rome \"x\" {}", "days": 7, "deep": {"a": [1, "b"], "c": true}})",
              "<tool_call|>");
}

TEST(ToolArguments, AnyOutputBecomesJsonOnceItIsComplete) {
  for (const char* text : {"a=,b=)", "1, 2)", "a=[1,,2])", "=)", "a==1)", "\"k\"=1)", "a=])"}) {
    const Output output = Read(Python(), {}, text, 1);
    EXPECT_TRUE(nlohmann::json::accept(output.json)) << text << " gives " << output.json;
  }
}

}  // namespace
}  // namespace strata
