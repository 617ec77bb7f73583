#include "node/chat/chat_template.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

const std::vector<ChatMessage> kMessages = {{.role = "system", .content = "Be brief."},
                                            {.role = "user", .content = "Hi"}};

absl::StatusOr<ChatTemplate::Prompt> Render(const std::string& text,
                                            const std::vector<ChatMessage>& messages = kMessages,
                                            const ChatTools& tools = {},
                                            const ChatTemplate::RenderOptions& options = {}) {
  auto parsed = ChatTemplate::Parse({.text = text, .bos = "<s>", .eos = "</s>"});
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(messages, tools, absl::UnixEpoch(), options);
}

constexpr char kChatMl[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content | trim) + "
    "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% endif %}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif "
    "%}";

TEST(ChatTemplate, RendersByTheOptions) {
  const std::vector<ChatMessage> begun = {
      {.role = "user", .content = "Who?"},
      {.role = "assistant", .content = "The old captain was a "}};
  const auto text = [&](const ChatTemplate::RenderOptions& options) {
    const auto prompt = Render(kChatMl, begun, {}, options);
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    return prompt.ok() ? prompt->text : "";
  };
  const std::string plain =
      "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nThe old captain was a<|im_end|>\n";
  EXPECT_EQ(text({.ends_with_opening = false}), plain);
  EXPECT_EQ(text({.continues_last = true}), plain.substr(0, plain.rfind("<|im_end|>")));
  EXPECT_EQ(text({.variables = R"({"enable_thinking":false,"messages":[]})"}),
            plain + "<|im_start|>assistant\n<think></think>");
}

TEST(ChatTemplate, AMessageThatIsLeftOutCannotBeContinued) {
  EXPECT_THAT(Render("x{{ messages[0].content }}",
                     {{.role = "user", .content = "Who?"}, {.role = "assistant", .content = "Me"}},
                     {}, {.continues_last = true}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("last message")));
}

TEST(ChatTemplate, RendersTheUsualForm) {
  const auto prompt = Render(
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
      "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->text,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_FALSE(prompt->has_bos);
}

TEST(ChatTemplate, ReportsWhetherThePromptHasItsBos) {
  const auto prompt =
      Render("{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->text, "<s>Be brief.</s>Hi</s>");
  EXPECT_TRUE(prompt->has_bos);
}

TEST(ChatTemplate, MergesSystemMessagesIntoTheUsersWhereTheTemplateLeavesThemOut) {
  const auto prompt = Render(
      "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% endif %}{% endfor %}");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->text, "[Be brief.\n\nHi]");
}

TEST(ChatTemplate, GivesContentAsPartsWhereTheTemplateWantsThem) {
  const auto prompt = Render(
      "{% for m in messages %}{% for part in m.content %}{{ part.text }};{% endfor %}{% endfor %}");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->text, "Be brief.;Hi;");
}

TEST(ChatTemplate, ReturnsTheTemplatesOwnError) {
  EXPECT_THAT(Render("{% if messages[-1].role != 'user' %}{{ raise_exception('ask something') }}"
                     "{% endif %}{{ messages[0].content }}",
                     {{.role = "assistant", .content = "x"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ask something")));
}

ChatTools Tools() {
  ChatTools tools;
  tools.list.push_back(
      {.name = "sum",
       .json = R"({"type":"function","function":{"name":"sum","parameters":{"z":1,"a":2}}})",
       .parameters = {}});
  return tools;
}
const std::vector<ChatMessage> kCalled = {
    {.role = "user", .content = "2+2?"},
    {.role = "assistant",
     .content = "",
     .calls = {{.id = "c1", .name = "sum", .arguments = R"({"a":2})"}}},
    {.role = "tool", .content = "4", .call_id = "c1"}};

// As Hermes and Qwen have it.
constexpr char kWithTools[] =
    R"({%- if tools %}Tools:{% for t in tools %}{{ t | tojson }}{% endfor %};{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}<tool_response>{{ m.name }}:{{ m.content }}</tool_response>
{%- elif m.tool_calls -%}{%- for c in m.tool_calls -%}<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{%- endfor -%}
{%- else -%}[{{ m.role }}]{{ m.content }}{%- endif -%}
{%- endfor -%})";

TEST(ChatTemplate, RendersToolsInTheTemplatesForm) {
  const auto prompt = Render(kWithTools, kCalled, Tools());
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_THAT(prompt->text, HasSubstr("Tools:{\"type\": \"function\""));
  EXPECT_LT(prompt->text.find("\"z\""), prompt->text.find("\"a\""));
  EXPECT_THAT(prompt->text,
              HasSubstr("<tool_call>{\"name\": \"sum\", \"arguments\": {\"a\": 2}}</tool_call>"));
  EXPECT_THAT(prompt->text, HasSubstr("<tool_response>sum:4</tool_response>"));
}

TEST(ChatTemplate, DescribesToolsInWordsWhereTheTemplateHasNoForm) {
  const auto prompt =
      Render("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", kCalled, Tools());
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_THAT(prompt->text, HasSubstr("\"name\":\"sum\""));
  EXPECT_THAT(prompt->text, HasSubstr("<tool_call>\n{\"name\":\"sum\",\"arguments\":{\"a\":2}}\n"));
  EXPECT_THAT(prompt->text, HasSubstr("[user]<tool_response>\n4\n</tool_response>"));
}

TEST(ChatTemplate, ToolsThatAreNotOfferedAreNotRendered) {
  ChatTools tools = Tools();
  tools.choice = ChatTools::Choice::kNone;
  const auto prompt = Render(kWithTools, kMessages, tools);
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_THAT(prompt->text, ::testing::Not(HasSubstr("Tools:")));
}

TEST(ChatTemplate, AnInvalidTemplateIsAnError) {
  for (const char* bad : {"{% for m in %}", "{% if %}", "{{ messages", "{% endfor %}"}) {
    EXPECT_THAT(Render(bad), StatusIs(absl::StatusCode::kInvalidArgument)) << bad;
  }
}

}  // namespace
}  // namespace strata
