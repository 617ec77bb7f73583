#include "coordinator/models/chat_templates.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

GgufHeader Header() {
  GgufHeader header;
  header.Set("tokenizer.chat_template", GgufValue::String("usual"));
  header.Set("tokenizer.chat_template.tool_use", GgufValue::String("tools"));
  header.Set("tokenizer.chat_template.rag", GgufValue::String("rag"));
  return header;
}

TEST(ChatTemplates, AreThoseOfTheFile) {
  const auto templates = ChatTemplatesOf(Header(), {});
  ASSERT_TRUE(templates.ok()) << templates.status();
  EXPECT_EQ(templates->usual, "usual");
  EXPECT_EQ(templates->with_tools, "tools");
  EXPECT_EQ(ChatTemplatesOf(GgufHeader(), {})->usual, "");
}

TEST(ChatTemplates, ALoadGivesOneForAllChats) {
  wire::LoadModelRequest request;
  request.set_chat_template("{{ 'mine\xff' }}");
  const auto templates = ChatTemplatesOf(Header(), request);
  ASSERT_TRUE(templates.ok()) << templates.status();
  EXPECT_EQ(templates->usual, "{{ 'mine?' }}");
  EXPECT_EQ(templates->with_tools, "");
}

TEST(ChatTemplates, ALoadNamesOneOfTheFile) {
  wire::LoadModelRequest request;
  for (const auto& [name, text] : {std::pair("rag", "rag"), std::pair("default", "usual")}) {
    request.set_chat_template_name(name);
    const auto templates = ChatTemplatesOf(Header(), request);
    ASSERT_TRUE(templates.ok()) << templates.status();
    EXPECT_EQ(templates->usual, text);
    EXPECT_EQ(templates->with_tools, "");
  }
  request.set_chat_template_name("other");
  EXPECT_THAT(ChatTemplatesOf(Header(), request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("other"), HasSubstr("default, tool_use, rag"))));
}

TEST(ChatTemplates, LongOnesAreRefusedOrLeftOut) {
  wire::LoadModelRequest request;
  request.set_chat_template(std::string(kGivenChatTemplateBytesMax + 1, 'x'));
  EXPECT_THAT(ChatTemplatesOf(Header(), request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("64 KiB")));
  GgufHeader header = Header();
  header.Set("tokenizer.chat_template",
             GgufValue::String(std::string(kChatTemplateBytesMax + 1, 'x')));
  EXPECT_EQ(ChatTemplatesOf(header, {})->usual, "");
}

}  // namespace
}  // namespace strata
