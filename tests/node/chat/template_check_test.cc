#include "node/chat/template_check.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

std::vector<ChatSupport> Check(TemplateCheck* check, const std::vector<std::string>& texts) {
  std::vector<ChatTemplate::Source> sources;
  for (const std::string& text : texts) sources.push_back({.text = text, .bos = "", .eos = ""});
  std::vector<ChatSupport> results;
  absl::Notification done;
  check->Check(std::move(sources), [&](std::vector<ChatSupport> found) {
    results = std::move(found);
    done.Notify();
  });
  done.WaitForNotification();
  return results;
}

TEST(TemplateCheck, SaysWhatTemplatesCannotDo) {
  TemplatePool pool({.program = STRATA_PROGRAM});
  TemplateCheck check(&pool);
  for (int round = 0; round < 2; ++round) {  // tried; known
    const auto results =
        Check(&check, {"{{ messages[0].content }}{{ tools }}", "{% for %}",
                       "{{ raise_exception('not for chats') }}", "", "{{ messages[0].content }}"});
    ASSERT_EQ(results.size(), 5);
    EXPECT_THAT(results[0].status, IsOk());
    EXPECT_FALSE(results[0].tools_in_words);
    EXPECT_THAT(results[1].status,
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot be read")));
    EXPECT_THAT(results[2].status,
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not for chats")));
    EXPECT_THAT(results[3].status, StatusIs(absl::StatusCode::kNotFound));
    EXPECT_THAT(results[4].status, IsOk());
    EXPECT_TRUE(results[4].tools_in_words);
  }
}

TEST(TemplateCheck, WhatCannotBeTriedPassesAndIsTriedAgain) {
  TemplatePool none({.program = "/no/such/program"});
  TemplateCheck check(&none);
  EXPECT_THAT(Check(&check, {"{% for %}"})[0].status, IsOk());
}

}  // namespace
}  // namespace strata
