#include "node/chat/chat_template.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
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

ChatTools Tools() {
  ChatTools tools;
  tools.list.push_back(
      {.name = "sum",
       .json = R"({"type":"function","function":{"name":"sum","parameters":{"z":1,"a":2}}})",
       .parameters = {}});
  return tools;
}

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

// What a template writes behind a message may have the message's text, too.
TEST(ChatTemplate, AContinuedMessageEndsWhereItsTextEnds) {
  for (const char* begun : {"<", "im", "|", "end", " <|im_end|> <", ""}) {
    const auto prompt = Render(
        kChatMl, {{.role = "user", .content = "Who?"}, {.role = "assistant", .content = begun}}, {},
        {.continues_last = true});
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_EQ(prompt->text,
              absl::StrCat("<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n",
                           absl::StripAsciiWhitespace(begun)));
  }
  const auto spaces =
      Render("{% for m in messages %}[{{ m.content }}]{% endfor %}",
             {{.role = "assistant", .content = "a "}}, {}, {.continues_last = true});
  ASSERT_TRUE(spaces.ok()) << spaces.status();
  EXPECT_EQ(spaces->text, "[a ");
}

TEST(ChatTemplate, WithoutToolsTheirVariableIsNotSetWhereTheTemplateNeedsThat) {
  const char kText[] =
      "{% if tools is defined %}{% for t in tools %}{{ t.function.name }};{% endfor %}{% endif %}"
      "{{ messages[0].content }}";
  const std::vector<ChatMessage> asked = {{.role = "user", .content = "Who?"}};
  const auto without = Render(kText, asked);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->text, "Who?");
  const auto with = Render(kText, asked, Tools());
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_EQ(with->text, "sum;Who?");
}

TEST(ChatTemplate, ToolsGetWhatTheTemplateNeedsOfThem) {
  const char kText[] =
      "{% for t in tools or [] %}{{ t.function.name + t.function.description + "
      "(t.function.parameters | tojson) }}{% endfor %}{{ messages[0].content }}";
  ChatTools tools;
  tools.list = {{.name = "f", .json = R"({"type":"function","function":{"name":"f"}})"}};
  const auto prompt = Render(kText, {{.role = "user", .content = "Who?"}}, tools);
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->text, R"(f{"type": "object", "properties": {}}Who?)");
}

TEST(ChatTemplate, AThoughtIsLeftOutWhereTheTemplateRefusesItBesideTextAndCalls) {
  const char kText[] =
      "{% for m in messages %}{% if m.thinking and m.content and m.tool_calls %}"
      "{{ raise_exception('not both') }}{% endif %}{{ m.thinking or '' }}[{{ m.content or '' }}]"
      "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}"
      "{{ tools and '' }}";
  ChatMessage said = {.role = "assistant",
                      .content = "W",
                      .calls = {{.id = "c1", .name = "sum", .arguments = "{}"}},
                      .reasoning = "R"};
  const auto prompt = Render(kText, {{.role = "user", .content = "U"}, said}, Tools());
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->text, "[U][W]sum");
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

TEST(ChatTemplate, DescribesToolsInWordsWhereTheTemplateHasNoPlaceForThem) {
  const auto prompt =
      Render("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", kCalled, Tools());
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_TRUE(prompt->tools_in_words);
  EXPECT_THAT(prompt->text, HasSubstr("\"name\":\"sum\""));
  EXPECT_THAT(prompt->text, HasSubstr("<tool_call>\n{\"name\":\"sum\",\"arguments\":{\"a\":2}}\n"));
  EXPECT_THAT(prompt->text, HasSubstr("[user]<tool_response>\n4\n</tool_response>"));
}

// A template that fails when it tells of tools once was given other words instead.
TEST(ChatTemplate, ATemplateThatLooksAtToolsHasOnlyItsOwnWords) {
  EXPECT_THAT(Render("{% if tools %}{{ tools[0].function.no.such }}{% endif %}"
                     "{% for m in messages %}{{ m.content }}{% endfor %}",
                     kMessages, Tools()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has no attribute 'no'")));
  const auto prompt = Render(
      "{% if tools %}T{{ tools | length }}{% endif %}"
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
      kCalled, Tools());
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_FALSE(prompt->tools_in_words);
  EXPECT_EQ(prompt->text, "T1[user]2+2?[assistant][tool]4");
}

// As Qwen3-Coder.
TEST(ChatTemplate, CallsOfTheHistoryAreInTheTemplatesForm) {
  const auto prompt = Render(
      "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"
      "<function={{ c.function.name }}>{% for k, v in c.function.arguments | items %}"
      "<parameter={{ k }}>{{ v }}</parameter>{% endfor %}</function>{% endfor %}{% endfor %}",
      kCalled);
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->text, "null2+2?<function=sum><parameter=a>2</parameter></function>4");
}

// As DeepSeek R1.
TEST(ChatTemplate, ArgumentsAreTextWhereTheTemplateWantsIt) {
  const auto prompt = Render(
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"
      "{{ '<' + c.function.name + '>' + c.function.arguments }}{% endfor %}{% endfor %}",
      kCalled);
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->text, R"(2+2?<sum>{"a":2}4)");
}

// As DeepSeek R1 and V3.
TEST(ChatTemplate, AMessageThatOnlyCallsHasNoContentWhereTheTemplateWantsNone) {
  const auto prompt = Render(
      "{% for m in messages %}{% if m.content is none %}<{{ m.tool_calls[0].function.name }}>"
      "{% else %}[{{ m.content }}]{% endif %}{% endfor %}",
      kCalled);
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->text, "[2+2?]<sum>[4]");
}

TEST(ChatTemplate, ThoughtsGoWhereTheTemplateReadsThem) {
  const std::vector<ChatMessage> messages = {
      {.role = "user", .content = "Hi"},
      {.role = "assistant", .content = "Hello", .reasoning = "A greeting."}};
  for (const std::string field : {"reasoning_content", "reasoning", "thinking"}) {
    const auto prompt = Render("{% for m in messages %}{% if '" + field + "' in m %}<think>{{ m." +
                                   field + " }}</think>{% endif %}{{ m.content }}{% endfor %}",
                               messages);
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_EQ(prompt->text, "Hi<think>A greeting.</think>Hello");
  }
}

// Constructs of published templates.
TEST(ChatTemplate, WhatJinja2TakesIsTaken) {
  for (const auto& [source, expected] : std::vector<std::pair<std::string, std::string>>{
           {"{{ raise_exception('a' 'b') if not messages }}", ""},
           {"{{ messages.0.role if (not messages.0.content.endswith('!')) }}", "user"},
           {"{{ x is undefined }}{{ x is none }}{{ {} is none }}{{ 'no' if {} }}",
            "TrueFalseFalse"},
           {"{{ '<t>a</t>b'.split('</t>', 1)[1] }}{{ ' a  b '.split()[1] }}{{ 'äö' | length }}",
            "bb2"},
           {"{{ [1, {'b': 'é', 'a': 2}] | tojson(ensure_ascii=False, separators=(',', ':'), "
            "sort_keys=True) }}",
            R"([1,{"a":2,"b":"é"}])"},
           {"{% raw %}{{ x }}{% endraw %}{{ (1, 'b')[1] }}{{ {'a': 1}.values() | list }}",
            "{{ x }}b[1]"},
           {"{{ [3, -1] | sort | reverse | list }}{{ -2 | abs }}{{ 2.55 | round(1) }}",
            "[3, -1]22.5"}}) {
    const auto prompt = Render("{% for m in messages %}{{ m.content }}{% endfor %}" + source,
                               {{.role = "user", .content = "Hi"}});
    ASSERT_TRUE(prompt.ok()) << source << ": " << prompt.status();
    EXPECT_EQ(prompt->text, "Hi" + expected) << source;
  }
}

constexpr char kStrict[] =
    "{%- for m in messages -%}"
    "{%- if m.role == 'system' and not loop.first -%}{{- raise_exception('System comes first.') "
    "-}}{%- endif -%}"
    "{%- if m.tool_calls and m.tool_calls | length > 1 -%}{{- raise_exception('One call at a "
    "time.') -}}{%- endif -%}"
    "{%- for c in m.tool_calls or [] -%}{%- if c.id | length != 9 -%}{{- raise_exception('Ids have "
    "9 letters.') -}}{%- endif -%}<{{ c.id }}>{%- endfor -%}"
    "[{{ m.role }}]{{ m.content }}{%- endfor -%}{{- '' if tools else '' -}}";

TEST(ChatTemplate, MessagesAreFittedWhereTheTemplateRefusesThem) {
  const std::vector<ChatMessage> system_later = {{.role = "user", .content = "1"},
                                                 {.role = "system", .content = "Be brief."},
                                                 {.role = "user", .content = "2"}};
  const auto merged = Render(kStrict, system_later);
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->text, "[system]Be brief.[user]1[user]2");

  const std::vector<ChatMessage> calls = {
      {.role = "user", .content = "1"},
      {.role = "assistant",
       .content = "",
       .calls = {{.id = "call_1", .name = "f", .arguments = "{}"},
                 {.id = "call_2", .name = "f", .arguments = "{}"}}},
      {.role = "tool", .content = "x", .call_id = "call_1"},
      {.role = "tool", .content = "y", .call_id = "call_2"}};
  const auto split = Render(kStrict, calls);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->text, "[user]1<call00001>[assistant][tool]x<call00002>[assistant][tool]y");
}

TEST(ChatTemplate, MessagesThatTheTemplateTakesStayAsTheyAre) {
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "1"},
                                             {.role = "system", .content = "Be brief."},
                                             {.role = "user", .content = "2"}};
  const auto prompt =
      Render("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", messages);
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->text, "[user]1[system]Be brief.[user]2");
}

TEST(ChatTemplate, WhereNoChangeHelpsTheErrorIsTheFirst) {
  EXPECT_THAT(Render("{% for m in messages %}{% if m.role == 'system' %}"
                     "{{ raise_exception('no system') }}{% elif '\n' in m.content %}"
                     "{{ raise_exception('no lines') }}{% endif %}{{ m.content }}{% endfor %}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no system")));
}

// As gpt-oss, which tells the first call of a message and leaves the others out.
TEST(ChatTemplate, CallsThatTheTemplateWouldLeaveOutHaveTheirOwnMessage) {
  const auto prompt = Render(
      "{{ tools is none }}{% for m in messages %}{% if m.tool_calls %}"
      "<{{ m.tool_calls[0].function.name }}>{% else %}{{ m.content }}{% endif %}{% endfor %}",
      {{.role = "user", .content = "1"},
       {.role = "assistant",
        .content = "",
        .calls = {{.id = "1", .name = "f", .arguments = "{}"},
                  {.id = "2", .name = "g", .arguments = "{}"}}},
       {.role = "tool", .content = "x", .call_id = "1"},
       {.role = "tool", .content = "y", .call_id = "2"}});
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->text, "True1<f>x<g>y");
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
    EXPECT_THAT(Render(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot be read: ")))
        << bad;
  }
}

}  // namespace
}  // namespace strata
