#include "node/chat/template_messages.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Json = nlohmann::ordered_json;
using enum MessageFit::System;

constexpr TemplateForm kHuggingFace = {
    .tools = true, .calls = TemplateForm::Calls::kObject, .answers = true};

// "role:content(calls)[answered call]" for each message.
std::vector<std::string> Shown(const std::vector<ChatMessage>& messages) {
  std::vector<std::string> shown;
  for (const ChatMessage& message : messages) {
    std::string text = message.role + ":" + message.content;
    for (const ChatToolCall& call : message.calls) text += "(" + call.id + ")";
    if (!message.call_id.empty()) text += "[" + message.call_id + "]";
    shown.push_back(text);
  }
  return shown;
}

ChatMessage Calls(const std::vector<std::string>& ids) {
  ChatMessage message = {.role = "assistant", .content = ""};
  for (const std::string& id : ids) {
    message.calls.push_back({.id = id, .name = "f", .arguments = R"({"b":1,"a":[]})"});
  }
  return message;
}
ChatMessage Answer(const std::string& id) {
  return {.role = "tool", .content = "r", .name = "f", .call_id = id};
}

TEST(TemplateMessages, AreThoseOfHuggingFace) {
  ChatMessage called = Calls({"abcdefghi"});
  called.reasoning = "Hm.";
  const std::vector<ChatMessage> messages = {
      {.role = "user", .content = "Hi"}, called, Answer("abcdefghi")};
  EXPECT_EQ(MessagesJson(messages, kHuggingFace), Json::parse(R"([
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [
        {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": []}}}]},
      {"role": "tool", "content": "r", "tool_call_id": "abcdefghi", "name": "f"}])"));
}

TEST(TemplateMessages, HaveTheFormThatATemplateTakes) {
  TemplateForm form = kHuggingFace;
  form.typed = true;
  form.reasoning = "thinking";
  form.calls = TemplateForm::Calls::kText;
  ChatMessage called = Calls({"abcdefghi"});
  called.reasoning = "Hm.";
  const Json json = MessagesJson({called}, form)[0];
  EXPECT_EQ(json["content"], Json::parse(R"([{"type": "text", "text": ""}])"));
  EXPECT_EQ(json["thinking"], "Hm.");
  EXPECT_FALSE(json.contains("reasoning_content"));
  EXPECT_EQ(json["tool_calls"][0]["function"]["arguments"], R"({"b":1,"a":[]})");
}

TEST(TemplateMessages, ArgumentsThatAreNotJsonStayText) {
  ChatMessage called = Calls({"abcdefghi"});
  called.calls[0].arguments = "{";
  EXPECT_EQ(MessagesJson({called}, kHuggingFace)[0]["tool_calls"][0]["function"]["arguments"], "{");
}

TEST(TemplateMessages, ToolsThatAreNotOfferedAreNull) {
  ChatTools tools;
  EXPECT_TRUE(ToolsJson(tools).is_null());
  tools.list.push_back({.name = "f", .json = R"({"z":1,"a":2})", .parameters = ""});
  EXPECT_EQ(ToolsJson(tools).dump(), R"([{"z":1,"a":2}])");
  tools.choice = ChatTools::Choice::kNone;
  EXPECT_TRUE(ToolsJson(tools).is_null());
}

TEST(MessageFit, NothingFitsWhereNothingCouldBeOtherwise) {
  EXPECT_THAT(FitsFor({{.role = "user", .content = "Hi"},
                       Calls({"abcdefghi"}),
                       Answer("abcdefghi"),
                       {.role = "user", .content = "Hi"}}),
              IsEmpty());
}

TEST(MessageFit, SmallerChangesComeFirst) {
  const auto fits = FitsFor(
      {{.role = "user", .content = "Hi"}, Calls({"1", "2"}), {.role = "system", .content = "s"}});
  ASSERT_THAT(fits, SizeIs(11));
  EXPECT_TRUE(fits[0].short_ids && !fits[0].one_call && fits[0].system == kAsGiven);
  EXPECT_TRUE(!fits[1].short_ids && fits[1].one_call && fits[1].system == kAsGiven);
  EXPECT_TRUE(fits[10].short_ids && fits[10].one_call && fits[10].system == kInUser);
}

TEST(MessageFit, ForeignIdsBecomeNineLettersAndDigits) {
  EXPECT_THAT(Shown(Fitted({Calls({"call_x", "ABCdef123", "call_y"}), Answer("call_y"),
                            Answer("ABCdef123"), Answer("")},
                           {.short_ids = true})),
              ElementsAre("assistant:(call00001)(ABCdef123)(call00002)", "tool:r[call00002]",
                          "tool:r[ABCdef123]", "tool:r[call00003]"));
}

TEST(MessageFit, EachCallIsFollowedByItsAnswer) {
  ChatMessage two = Calls({"1", "2"});
  two.content = "I look.";
  EXPECT_THAT(
      Shown(Fitted({two, Answer("2"), Answer("1"), Answer("3"), {.role = "user", .content = "Hi"}},
                   {.one_call = true})),
      ElementsAre("assistant:I look.(1)", "tool:r[1]", "assistant:(2)", "tool:r[2]", "tool:r[3]",
                  "user:Hi"));
}

TEST(MessageFit, SystemMessagesBecomeOne) {
  const std::vector<ChatMessage> messages = {{.role = "system", .content = "a"},
                                             {.role = "user", .content = "Hi"},
                                             {.role = "system", .content = "b"},
                                             {.role = "user", .content = "More"}};
  EXPECT_THAT(Shown(Fitted(messages, {.system = kFirst})),
              ElementsAre("system:a\n\nb", "user:Hi", "user:More"));
  EXPECT_THAT(Shown(Fitted(messages, {.system = kInUser})),
              ElementsAre("user:a\n\nHi", "user:b\n\nMore"));
}

}  // namespace
}  // namespace strata
