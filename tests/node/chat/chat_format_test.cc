#include "node/chat/chat_format.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using Shape = ToolCallForm::Shape;

ChatFormat Learned(const std::string& text) {
  const ChatTemplate::Source source = {.text = text, .bos = "<s>", .eos = "</s>"};
  const auto chat_template = ChatTemplate::Parse(source);
  EXPECT_TRUE(chat_template.ok()) << chat_template.status();
  if (!chat_template.ok()) return {};
  // What a process sends is what the API reads.
  return DecodeChatFormat(EncodeChatFormat(LearnChatFormat(**chat_template, source)));
}

// A family's way to write its messages; $CALL is one call `c`, whose arguments are an object.
std::string Template(const std::string& call, const std::string& thought = "",
                     const std::string& opening = "") {
  return "{% for m in messages %}<|start_of_turn|>{{ m.role }}\n" + thought +
         "{{ m.content or '' }}{% for c in m.tool_calls or [] %}" + call +
         "{% endfor %}<|end_of_turn|>\n{% endfor %}"
         "{% if add_generation_prompt %}<|start_of_turn|>assistant\n" +
         opening + "{% endif %}";
}

TEST(ChatFormat, LearnsCallsInTags) {
  const ChatFormat format = Learned(Template(
      "\n<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in "
      "c.function.arguments.items() %}"
      "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"));
  EXPECT_EQ(format.calls.shape, Shape::kParameters);
  EXPECT_EQ(format.calls.call_open, "<tool_call>\n<function=");
  EXPECT_EQ(format.calls.call_close, "</function>\n</tool_call>");
  EXPECT_EQ(format.calls.value_close, "\n</parameter>\n");
}

TEST(ChatFormat, LearnsCallsAsObjectsThatNoFamilyHasYet) {
  const ChatFormat format = Learned(Template(
      "<invoke>{\"tool\": \"{{ c.function.name }}\", \"with\": {{ c.function.arguments | tojson }}}"
      "</invoke>"));
  EXPECT_EQ(format.calls.shape, Shape::kObject);
  EXPECT_EQ(format.calls.call_open, "<invoke>");
  EXPECT_EQ(format.calls.name_key, "tool");
  EXPECT_EQ(format.calls.arguments_key, "with");
  EXPECT_EQ(format.calls.call_close, "</invoke>");
}

TEST(ChatFormat, AThoughtBeforeTheCallsIsNoPartOfThem) {
  const ChatFormat format = Learned(Template(
      "<call>{{ c.function.name }}<with>{{ c.function.arguments | tojson }}</call>",
      "{% if m.role == 'assistant' %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n"
      "{% endif %}",
      "<think>\n"));
  EXPECT_EQ(format.calls.section_open + format.calls.call_open, "<call>");
  EXPECT_EQ(format.thoughts.open, "<think>");
  EXPECT_EQ(format.thoughts.close_text, "\n</think>\n\n");
  EXPECT_TRUE(format.thoughts.is_taught);
}

TEST(ChatFormat, TemplatesWithoutToolsTeachWhatTheyAreToldInWords) {
  const ChatFormat format =
      Learned("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
  EXPECT_EQ(format.calls.shape, Shape::kObject);
  EXPECT_EQ(format.calls.call_open, "<tool_call>\n");
  EXPECT_FALSE(format.is_harmony);
  EXPECT_FALSE(format.thoughts.is_taught);
}

TEST(ChatFormat, ATemplateThatRefusesTheProbesHasTheFormThatItNames) {
  const ChatFormat format = Learned("{{ raise_exception('no') }}[TOOL_CALLS] name [ARGS]");
  EXPECT_EQ(format.calls.call_open, "[TOOL_CALLS]");
}

TEST(ChatFormat, KimiNamesOnlyTheListOfTools) {
  const ChatFormat format = Learned(
      "{% if tools %}<|im_system|>tool_declare{{ tools | tojson }}{% endif %}"
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
  EXPECT_EQ(format.calls.section_open + format.calls.call_open,
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.");
}

TEST(ChatFormat, WhatEndsTheTurnIsNoPartOfACall) {
  const ChatFormat format =
      Learned(Template("<call>{{ c.function.name }}<with>{{ c.function.arguments | tojson }}</call>"
                       "<|tool_response>"));
  EXPECT_EQ(format.calls.arguments_close + format.calls.call_close, "</call>");
}

TEST(ChatFormat, OfHarmonyHasChannels) {
  const ChatFormat format =
      Learned("{{ '<|start|>assistant<|channel|>analysis<|message|>' }}{{ messages[0].content }}");
  EXPECT_TRUE(format.is_harmony);
  EXPECT_THAT(MarksOf(format, /*with_calls=*/false), Contains("<|channel|>"));
}

TEST(ChatFormat, BrokenTextGivesTheCommonForm) {
  for (const char* text : {"", "[]", "{\"thought_open\":1,\"calls\":\"x\"}"}) {
    const ChatFormat format = DecodeChatFormat(text);
    EXPECT_EQ(format.thoughts.open, "<think>");
    EXPECT_EQ(format.calls.call_open, "<tool_call>\n");
  }
}

TEST(ChatFormat, OnlyMarksWithBracketsMayBeControlTokens) {
  for (const std::string& mark : MarksOf(DecodeChatFormat(""), /*with_calls=*/true)) {
    EXPECT_NE(mark.find_first_of("<["), std::string::npos) << mark;
  }
  EXPECT_THAT(MarksOf(DecodeChatFormat(""), /*with_calls=*/false),
              Not(Contains(HasSubstr("tool"))));
}

}  // namespace
}  // namespace strata
