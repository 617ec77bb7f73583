#include "node/status/status_source.h"

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;

// Nodes by address; each knows all of them.
class StatusSourceTest : public ::testing::Test {
 protected:
  StatusSource Source(const std::string& address) {
    StatusSource::Ways ways;
    ways.collect = [this](const std::string& asked) -> absl::StatusOr<ClusterSnapshot> {
      asked_.push_back(asked);
      if (!up_[asked]) return absl::UnavailableError(absl::StrCat("no node answers at ", asked));
      ClusterSnapshot report;
      report.cluster.set_asked(asked);
      for (const auto& [other, up] : up_) {
        NodeReport& node = report.nodes.emplace_back();
        node.seen.mutable_record()->set_node_id(other);
        node.seen.set_address(other);
        node.seen.set_state(up ? "alive" : "gone");
      }
      return report;
    };
    ways.find = [this]() -> absl::StatusOr<std::string> {
      ++searches_;
      if (found_.empty()) return absl::UnavailableError("nobody");
      return found_;
    };
    return {address, ways};
  }

  std::map<std::string, bool> up_;
  std::vector<std::string> asked_;
  std::string found_;
  int searches_ = 0;
};

TEST_F(StatusSourceTest, StaysWithTheNodeThatAnswers) {
  up_ = {{"a", true}, {"b", true}};
  StatusSource source = Source("b");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(source.Ask().ok());
  EXPECT_THAT(asked_, ElementsAre("b", "b", "b"));
}

TEST_F(StatusSourceTest, GoesOnWithAnotherNodeThatItKnew) {
  up_ = {{"a", true}, {"b", true}, {"c", false}, {"d", true}};
  StatusSource source = Source("b");
  ASSERT_TRUE(source.Ask().ok());
  up_["b"] = up_["a"] = false;
  asked_.clear();
  ASSERT_TRUE(source.Ask().ok());
  EXPECT_THAT(asked_, ElementsAre("b", "a", "d"));  // "c" was gone before
  EXPECT_EQ(source.address(), "d");
  // It does not jump back.
  up_["b"] = true;
  EXPECT_TRUE(source.Ask().ok());
  EXPECT_EQ(source.address(), "d");
  EXPECT_EQ(searches_, 0);
}

TEST_F(StatusSourceTest, LooksForANodeWhenAllAreGone) {
  up_ = {{"a", true}, {"b", true}};
  StatusSource source = Source("b");
  ASSERT_TRUE(source.Ask().ok());
  up_ = {{"x", true}};
  found_ = "x";
  EXPECT_TRUE(source.Ask().ok());
  EXPECT_EQ(source.address(), "x");
}

TEST_F(StatusSourceTest, SaysWhoDoesNotAnswerAndGoesOnTrying) {
  up_ = {{"b", true}};
  StatusSource source = Source("b");
  ASSERT_TRUE(source.Ask().ok());
  up_["b"] = false;
  found_ = "b";  // written down on this machine, though nobody is there
  EXPECT_EQ(source.Ask().status(), absl::UnavailableError("no node answers at b"));
  found_ = "y";  // no better
  EXPECT_EQ(source.Ask().status(), absl::UnavailableError("no node answers at b"));
  up_["b"] = true;
  EXPECT_TRUE(source.Ask().ok());
}

TEST_F(StatusSourceTest, TriesAFewOthersAtATimeEachInTurn) {
  for (int i = 0; i < 8; ++i) up_[absl::StrCat("n", i)] = true;
  StatusSource source = Source("n0");
  ASSERT_TRUE(source.Ask().ok());
  for (auto& [name, up] : up_) up = name == "n7";
  asked_.clear();
  EXPECT_FALSE(source.Ask().ok());
  EXPECT_THAT(asked_, ElementsAre("n0", "n1", "n2", "n3"));
  asked_.clear();
  EXPECT_FALSE(source.Ask().ok());
  EXPECT_THAT(asked_, ElementsAre("n0", "n4", "n5", "n6"));
  EXPECT_TRUE(source.Ask().ok());
  EXPECT_EQ(source.address(), "n7");
}

}  // namespace
}  // namespace strata
