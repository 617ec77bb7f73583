#include "node/chat_template.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

const std::vector<ApiMessage> kMessages = {{.role = "system", .content = "Be brief."},
                                           {.role = "user", .content = "Hi"}};

absl::StatusOr<ChatTemplate::Prompt> Render(const std::string& text,
                                            const std::vector<ApiMessage>& messages = kMessages) {
  auto parsed = ChatTemplate::Parse({.text = text, .bos = "<s>", .eos = "</s>"});
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(messages, absl::UnixEpoch());
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

TEST(ChatTemplate, KnowsWhetherTheTextHasItsBeginning) {
  const auto prompt =
      Render("{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->text, "<s>Be brief.</s>Hi</s>");
  EXPECT_TRUE(prompt->has_bos);
}

TEST(ChatTemplate, PutsSystemWordsIntoTheUsersWhereTheTemplateLeavesThemOut) {
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

TEST(ChatTemplate, SaysInItsOwnWordsWhatItDoesNotTake) {
  EXPECT_THAT(Render("{% if messages[-1].role != 'user' %}{{ raise_exception('ask something') }}"
                     "{% endif %}{{ messages[0].content }}",
                     {{.role = "assistant", .content = "x"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ask something")));
}

TEST(ChatTemplate, OneThatIsNoneIsAnError) {
  for (const char* bad : {"{% for m in %}", "{% if %}", "{{ messages", "{% endfor %}"}) {
    EXPECT_THAT(Render(bad), StatusIs(absl::StatusCode::kInvalidArgument)) << bad;
  }
}

}  // namespace
}  // namespace strata
