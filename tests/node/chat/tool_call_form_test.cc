#include "node/chat/tool_call_form.h"

#include <string>

#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "node/chat/known_tool_calls.h"

namespace strata {
namespace {

using Shape = ToolCallForm::Shape;

// The text of probe calls, written by hand as a template would. N is a name, T the text, D the
// number, I the id.
struct Calls {
  std::string head, call, between, tail;

  std::string Of(int i) const {
    return absl::StrReplaceAll(call, {{"$N", kProbeNames[i]},
                                      {"$T", kProbeTexts[i]},
                                      {"$D", kProbeNumbers[i]},
                                      {"$I", kProbeIds[i]},
                                      {"$i", i == 0 ? "0" : "1"}});
  }
  ToolCallForm Learned() const {
    const auto form = LearnToolCallForm(head + Of(0) + tail, head + Of(0) + between + Of(1) + tail);
    EXPECT_TRUE(form.has_value()) << head << Of(0) << tail;
    return form.value_or(ToolCallForm());
  }
};
constexpr char kArguments[] = R"({"strata_city": "$T", "strata_days": $D})";

void ExpectMarks(const ToolCallForm& form, const std::string& section_open,
                 const std::string& call_open, const std::string& call_close,
                 const std::string& separator, const std::string& section_close) {
  EXPECT_EQ(form.section_open, section_open);
  EXPECT_EQ(form.call_open, call_open);
  EXPECT_EQ(form.call_close, call_close);
  EXPECT_EQ(form.separator, separator);
  EXPECT_EQ(form.section_close, section_close);
}

TEST(ToolCallForm, LearnsObjectsInTags) {
  const ToolCallForm form =
      Calls{"<tool_call>\n", std::string(R"({"name": "$N", "arguments": )") + kArguments + "}",
            "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"}
          .Learned();
  EXPECT_EQ(form.shape, Shape::kObject);
  ExpectMarks(form, "", "<tool_call>\n", "\n</tool_call>", "\n", "");
  EXPECT_EQ(form.name_open, R"({"name": ")");
  EXPECT_EQ(form.name_close, R"(", "arguments": )");
  EXPECT_EQ(form.arguments_close, "}");
}

TEST(ToolCallForm, LearnsAListOfObjectsWithIds) {
  const ToolCallForm mistral =
      Calls{"[TOOL_CALLS] [",
            std::string(R"({"name": "$N", "arguments": )") + kArguments + R"(, "id": "$I"})", ", ",
            "]"}
          .Learned();
  ExpectMarks(mistral, "[TOOL_CALLS] [", "", "", ", ", "]");
  EXPECT_EQ(mistral.call_id, kProbeIds[0]);
  const ToolCallForm cohere =
      Calls{"<|START_ACTION|>[\n    ",
            std::string(R"({"tool_call_id": "$i", "tool_name": "$N", "parameters": )") +
                kArguments + "}",
            ",\n    ", "\n]<|END_ACTION|>"}
          .Learned();
  EXPECT_EQ(cohere.name_key, "tool_name");
  EXPECT_EQ(cohere.arguments_key, "parameters");
  EXPECT_EQ(cohere.call_id, "0");
  ExpectMarks(cohere, "<|START_ACTION|>[\n    ", "", "", ",\n    ", "\n]<|END_ACTION|>");
}

TEST(ToolCallForm, LearnsANameBeforeItsArguments) {
  const ToolCallForm kimi =
      Calls{"<|tool_calls_section_begin|><|tool_call_begin|>",
            std::string("functions.$N:$i<|tool_call_argument_begin|>") + kArguments,
            "<|tool_call_end|><|tool_call_begin|>", "<|tool_call_end|><|tool_calls_section_end|>"}
          .Learned();
  EXPECT_EQ(kimi.shape, Shape::kArguments);
  EXPECT_EQ(kimi.number_mark, ":");
  EXPECT_EQ(kimi.name_close, "<|tool_call_argument_begin|>");
  ExpectMarks(kimi, "<|tool_calls_section_begin|>", "<|tool_call_begin|>functions.",
              "<|tool_call_end|>", "", "<|tool_calls_section_end|>");
  const ToolCallForm mistral =
      Calls{"[TOOL_CALLS]", std::string("$N[CALL_ID]$I[ARGS]") + kArguments, "[TOOL_CALLS]", ""}
          .Learned();
  EXPECT_EQ(mistral.name_close, "[CALL_ID]strataid1[ARGS]");
  EXPECT_EQ(mistral.call_id, kProbeIds[0]);
  ExpectMarks(mistral, "", "[TOOL_CALLS]", "", "", "");
  const ToolCallForm deepseek =
      Calls{"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            std::string("$N\n```json\n") + kArguments + "\n```<｜tool▁call▁end｜>",
            "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "<｜tool▁calls▁end｜>"}
          .Learned();
  EXPECT_EQ(deepseek.name_close, "\n```json\n");
  ExpectMarks(deepseek, "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
              "\n```<｜tool▁call▁end｜>", "\n", "<｜tool▁calls▁end｜>");
}

TEST(ToolCallForm, LearnsTaggedParameters) {
  const ToolCallForm qwen =
      Calls{"<tool_call>\n<function=",
            "$N>\n<parameter=strata_city>\n$T\n</parameter>\n<parameter=strata_days>\n$D\n"
            "</parameter>\n</function>",
            "\n</tool_call>\n<tool_call>\n<function=", "\n</tool_call>"}
          .Learned();
  EXPECT_EQ(qwen.shape, Shape::kParameters);
  EXPECT_EQ(qwen.name_close, ">\n");
  EXPECT_EQ(qwen.key_open, "<parameter=");
  EXPECT_EQ(qwen.key_close, ">\n");
  EXPECT_EQ(qwen.value_close, "\n</parameter>\n");
  ExpectMarks(qwen, "", "<tool_call>\n<function=", "</function>\n</tool_call>", "\n", "");
  const ToolCallForm glm =
      Calls{"\n<tool_call>",
            "$N\n<arg_key>strata_city</arg_key>\n<arg_value>$T</arg_value>\n"
            "<arg_key>strata_days</arg_key>\n<arg_value>$D</arg_value>\n</tool_call>",
            "\n<tool_call>", ""}
          .Learned();
  EXPECT_EQ(glm.name_close, "\n");
  EXPECT_EQ(glm.key_close, "</arg_key>\n<arg_value>");
  EXPECT_EQ(glm.value_close, "</arg_value>\n");
  ExpectMarks(glm, "", "<tool_call>", "</tool_call>", "\n", "");
  const ToolCallForm minimax = Calls{"<minimax:tool_call>\n<invoke name=\"",
                                     "$N\">\n<parameter name=\"strata_city\">$T</parameter>\n"
                                     "<parameter name=\"strata_days\">$D</parameter>\n</invoke>",
                                     "\n<invoke name=\"", "\n</minimax:tool_call>"}
                                   .Learned();
  EXPECT_EQ(minimax.key_open, "<parameter name=\"");
  ExpectMarks(minimax, "<minimax:tool_call>\n", "<invoke name=\"", "</invoke>\n", "",
              "</minimax:tool_call>");
  const ToolCallForm typed =
      Calls{
          "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"",
          "$N\">\n<｜DSML｜parameter name=\"strata_city\" string=\"true\">$T</｜DSML｜parameter>\n"
          "<｜DSML｜parameter name=\"strata_days\" string=\"false\">$D</｜DSML｜parameter>\n"
          "</｜DSML｜invoke>",
          "\n<｜DSML｜invoke name=\"", "\n</｜DSML｜function_calls>"}
          .Learned();
  EXPECT_EQ(typed.key_close, "\" string=\"true\">");
  EXPECT_EQ(typed.number_key_close, "\" string=\"false\">");
}

TEST(ToolCallForm, LearnsCallsAsInPython) {
  const ToolCallForm form = Calls{"<|tool_call_start|>[", "$N(strata_city=\"$T\", strata_days=$D)",
                                  ", ", "]<|tool_call_end|>"}
                                .Learned();
  EXPECT_EQ(form.shape, Shape::kInline);
  EXPECT_TRUE(form.python);
  EXPECT_EQ(form.quote, "\"");
  ExpectMarks(form, "<|tool_call_start|>[", "", "", ", ", "]<|tool_call_end|>");
  const ToolCallForm gemma =
      Calls{"<|tool_call>call:", "$N{strata_city:<|\"|>$T<|\"|>,strata_days:$D}",
            "<tool_call|><|tool_call>call:", "<tool_call|>"}
          .Learned();
  EXPECT_FALSE(gemma.python);
  EXPECT_EQ(gemma.quote, "<|\"|>");
  EXPECT_EQ(gemma.value_separator, ",");
  ExpectMarks(gemma, "", "<|tool_call>call:", "<tool_call|>", "", "");
}

TEST(ToolCallForm, OneCallAloneTellsEnough) {
  const std::string call =
      std::string(R"({"name": "strata_alpha", "parameters": {"strata_city": "strata-rome", )") +
      R"("strata_days": 7}})";
  const auto form = LearnToolCallForm(call, "");
  ASSERT_TRUE(form.has_value());
  EXPECT_TRUE(form->is_bare());
  EXPECT_EQ(form->arguments_key, "parameters");
  EXPECT_EQ(form->separator, "; ");
}

TEST(ToolCallForm, IsNotLearnedWhereNoCallIsShown) {
  EXPECT_FALSE(LearnToolCallForm("", "").has_value());
  EXPECT_FALSE(LearnToolCallForm("strata_alpha", "").has_value());
  EXPECT_FALSE(LearnToolCallForm("call strata_alpha with strata_city", "").has_value());
}

TEST(ToolCallForm, IsTheSameReadBack) {
  for (const ToolCallForm& form : KnownToolCallForms()) {
    const auto back = DecodeToolCallForm(EncodeToolCallForm(form));
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(*back, form);
  }
  for (const char* text : {"", "{}", "[1]", "{\"shape\":9}", "{\"shape\":\"x\"}"}) {
    EXPECT_FALSE(DecodeToolCallForm(text).has_value()) << text;
  }
}

TEST(ToolCallForm, IsNamedByATemplateThatShowsNone) {
  EXPECT_EQ(ToolCallFormNamedIn("{{ messages }}").call_open, "<tool_call>\n");
  EXPECT_EQ(ToolCallFormNamedIn("<tool_call>\n<function=x>\n<parameter=y>").key_open,
            "<parameter=");
  EXPECT_EQ(ToolCallFormNamedIn("<tool_call>{name}<arg_key>").key_open, "<arg_key>");
  EXPECT_EQ(ToolCallFormNamedIn("'[TOOL_CALLS] ['").section_open, "[TOOL_CALLS][");
  EXPECT_EQ(ToolCallFormNamedIn("'[TOOL_CALLS]' name '[ARGS]'").call_open, "[TOOL_CALLS]");
  EXPECT_EQ(ToolCallFormNamedIn("<|tool_list_start|>").section_open, "<|tool_call_start|>[");
  EXPECT_EQ(ToolCallFormNamedIn("Environment: ipython").call_open, "<|python_tag|>");
}

TEST(MatchMark, PassesOverSpacesAroundTags) {
  size_t at = 0;
  EXPECT_EQ(MatchMark("<a><b>x", "<a>\n<b>\n", &at), MarkMatch::kYes);
  EXPECT_EQ(at, 6u);
  at = 0;
  EXPECT_EQ(MatchMark(" <a>\n <b>", "<a><b>", &at), MarkMatch::kYes);
  EXPECT_EQ(at, 9u);
  at = 0;
  EXPECT_EQ(MatchMark("<a> ", "<a><b>", &at), MarkMatch::kPartial);
  EXPECT_EQ(MatchMark("<a>c", "<a><b>", &at), MarkMatch::kNo);
  EXPECT_EQ(at, 0u);
}

}  // namespace
}  // namespace strata
