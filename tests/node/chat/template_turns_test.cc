#include "node/chat/template_turns.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kFast = absl::Milliseconds(1), kSlow = absl::Seconds(2);

// Prompts are named by their owners: "model client".
class TemplateTurnsTest : public ::testing::Test {
 protected:
  void Add(const std::string& model, const std::string& client, size_t bytes = 100) {
    const auto id = turns_->Add({.model = model, .client = client}, bytes);
    ASSERT_THAT(id, IsOk());
    names_[*id] = absl::StrCat(model, " ", client);
  }
  // Starts all prompts that may start.
  std::vector<std::string> Start() {
    std::vector<std::string> started;
    while (const auto id = turns_->Start(now_)) {
      started.push_back(names_[*id]);
      running_.emplace(names_[*id], *id);
    }
    return started;
  }
  // Ends a running prompt, which has used that much.
  void End(const std::string& name, absl::Duration used) {
    const auto found = running_.find(name);
    ASSERT_NE(found, running_.end()) << name;
    now_ += used;
    turns_->End(found->second, used, now_);
    running_.erase(found);
  }
  // Records an earlier prompt of this model and client.
  void AddHistory(const std::string& model, const std::string& client, absl::Duration used,
                  size_t bytes = 100) {
    Add(model, client, bytes);
    ASSERT_THAT(Start(), ElementsAre(absl::StrCat(model, " ", client)));
    End(absl::StrCat(model, " ", client), used);
  }

  std::unique_ptr<TemplateTurns> turns_ = std::make_unique<TemplateTurns>(TemplateTurns::Options());
  absl::Duration now_ = absl::Seconds(1000);
  std::map<TemplateTurns::Id, std::string> names_;
  std::multimap<std::string, TemplateTurns::Id> running_;
};

TEST_F(TemplateTurnsTest, PromptsOfNewUsersStartInTheirOrder) {
  Add("a", "1");
  Add("b", "2");
  Add("a", "3");
  Add("c", "4");
  EXPECT_THAT(Start(), ElementsAre("a 1", "b 2", "a 3"));
  EXPECT_FALSE(turns_->MayStart(now_));
  End("b 2", kFast);
  EXPECT_THAT(Start(), ElementsAre("c 4"));
}

TEST_F(TemplateTurnsTest, OneProcessIsReservedForAnotherModelAndClient) {
  for (int i = 0; i < 4; ++i) Add("a", absl::StrCat(i));
  EXPECT_THAT(Start(), ElementsAre("a 0", "a 1"));
  Add("b", "9");
  Add("c", "9");
  EXPECT_THAT(Start(), ElementsAre("b 9"));
  End("a 0", kFast);
  End("a 1", kFast);
  EXPECT_THAT(Start(), ElementsAre("a 2", "a 3"));
  End("b 9", kFast);
  EXPECT_THAT(Start(), ElementsAre("c 9"));
  for (const char* name : {"a 2", "a 3", "c 9"}) End(name, kFast);
  for (const char* model : {"d", "e", "f"}) Add(model, "1");
  EXPECT_THAT(Start(), ElementsAre("d 1", "e 1"));
}

TEST_F(TemplateTurnsTest, ThePromptWhoseModelAndClientUsedLeastIsNext) {
  AddHistory("slow", "1", kSlow);
  AddHistory("good", "1", kFast);
  AddHistory("good", "2", absl::Milliseconds(100));
  for (int i = 0; i < 2; ++i) Add("x", "8"), Add("y", "9");  // take all
  EXPECT_EQ(Start().size(), 3u);
  Add("slow", "1");
  Add("good", "2");
  Add("good", "1");
  Add("good", "3");
  End("x 8", kFast);
  EXPECT_THAT(Start(), ElementsAre("y 9"));
  for (const char* next : {"good 3", "good 2", "good 1"}) {
    End(running_.begin()->first, kFast);
    EXPECT_THAT(Start(), ElementsAre(next));
  }
}

TEST_F(TemplateTurnsTest, ASlowModelHasOneProcessHoweverManyClientsItHas) {
  AddHistory("slow", "1", kSlow);
  for (int i = 0; i < 8; ++i) Add("slow", absl::StrCat(i));
  EXPECT_THAT(Start(), ElementsAre("slow 0"));  // which it has not seen, but others
  for (int i = 0; i < 8; ++i) Add("good", absl::StrCat(i));
  EXPECT_THAT(Start(), ElementsAre("good 0", "good 2"));
  End("good 0", kFast);
  End("good 2", kFast);
  EXPECT_THAT(Start(), ElementsAre("good 3", "good 4"));
}

TEST_F(TemplateTurnsTest, SlowModelsTogetherLeaveAProcessForOthersOfTheSameClient) {
  for (const char* model : {"s", "t", "u"}) AddHistory(model, "1", kSlow);
  for (const char* model : {"s", "t", "u"}) Add(model, "1");
  EXPECT_THAT(Start(), ElementsAre("s 1"));
  Add("good", "1");
  EXPECT_THAT(Start(), ElementsAre("good 1"));
  Add("t", "2");
  Add("u", "3");
  EXPECT_THAT(Start(), ElementsAre("t 2"));  // two slow ones
  End("good 1", kFast);
  EXPECT_THAT(Start(), IsEmpty());
  Add("good", "4");
  EXPECT_THAT(Start(), ElementsAre("good 4"));
}

TEST_F(TemplateTurnsTest, LargePromptsOfAClientDoNotMakeItsSmallOnesWait) {
  constexpr size_t kLarge = 14 << 20;
  AddHistory("a", "1", kSlow, kLarge);
  AddHistory("a", "1", kFast);
  for (int i = 0; i < 4; ++i) Add("a", "1", kLarge);
  Add("a", "1");
  EXPECT_THAT(Start(), ElementsAre("a 1", "a 1"));
  EXPECT_EQ(turns_->waiting(), 3u);
}

TEST_F(TemplateTurnsTest, ALongRunningPromptIsSlowBeforeItEnds) {
  AddHistory("s", "1", kSlow);
  Add("new", "1");
  EXPECT_THAT(Start(), ElementsAre("new 1"));
  now_ += kSlow;
  Add("s", "1");
  EXPECT_THAT(Start(), IsEmpty());
  End("new 1", kSlow);
  EXPECT_THAT(Start(), ElementsAre("s 1"));
}

TEST_F(TemplateTurnsTest, UseFadesWithTime) {
  AddHistory("s", "1", kSlow);
  Add("s", "1");
  Add("s", "1");
  EXPECT_THAT(Start(), ElementsAre("s 1"));
  now_ += absl::Minutes(10);
  End("s 1", kFast);
  Add("s", "1");
  EXPECT_THAT(Start(), ElementsAre("s 1", "s 1"));
}

TEST_F(TemplateTurnsTest, OneProcessServesAllInTurn) {
  turns_ = std::make_unique<TemplateTurns>(TemplateTurns::Options{.processes = 1});
  for (int i = 0; i < 3; ++i) {
    Add("s", "1");
    Add("g", "2");
  }
  std::vector<std::string> order;
  for (int i = 0; i < 6; ++i) {
    const auto started = Start();
    ASSERT_EQ(started.size(), 1u);
    order.push_back(started[0]);
    End(started[0], started[0] == "s 1" ? kSlow : kFast);
  }
  EXPECT_THAT(order, ElementsAre("s 1", "g 2", "g 2", "g 2", "s 1", "s 1"));
}

TEST_F(TemplateTurnsTest, TooManyPromptsOfAClientAreItsOwnError) {
  for (size_t i = 0; i < kTemplatesWaitingOfClientMax; ++i) Add(absl::StrCat(i), "1");
  const auto more = turns_->Add({.model = "a", .client = "1"}, 1);
  EXPECT_THAT(more, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_TRUE(IsClientLimit(more.status()));
  EXPECT_TRUE(RetryAfterMs(more.status()).has_value());
  Add("a", "2");
}

TEST_F(TemplateTurnsTest, TooManyOfAModelLeaveRoomForOthers) {
  for (size_t i = 0; i < kTemplatesWaitingOfModelMax; ++i) Add("a", absl::StrCat(i));
  EXPECT_THAT(turns_->Add({.model = "a", .client = "new"}, 1),
              StatusIs(absl::StatusCode::kUnavailable));
  for (size_t i = 0; i < kTemplatesWaitingMax - kTemplatesWaitingOfModelMax; ++i) {
    Add("b", absl::StrCat("other ", i));
  }
  EXPECT_THAT(turns_->Add({.model = "c", .client = "new"}, 1),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(TemplateTurnsTest, WaitingBytesAreBounded) {
  constexpr size_t kPart = kTemplateBytesWaitingMax / 16;
  for (int i = 0; i < 8; ++i) Add("a", "1", kPart);
  EXPECT_THAT(turns_->Add({.model = "a", .client = "1"}, kPart),
              StatusIs(absl::StatusCode::kResourceExhausted));
  for (int i = 0; i < 8; ++i) Add("a", "2", kPart);
  EXPECT_THAT(turns_->Add({.model = "b", .client = "3"}, kPart),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(TemplateTurnsTest, ManyClientsAreForgottenAgain) {
  AddHistory("a", "the first", kSlow);
  for (size_t i = 0; i < 3 * kTemplateUsersMax; ++i) AddHistory("a", absl::StrCat(i), kFast);
}

}  // namespace
}  // namespace strata
