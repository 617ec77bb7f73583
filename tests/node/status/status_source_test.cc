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
    StatusSource::Calls calls;
    calls.collect = [this](const std::string& called) -> absl::StatusOr<ClusterSnapshot> {
      called_.push_back(called);
      if (!up_[called]) return absl::UnavailableError(absl::StrCat("no node answers at ", called));
      ClusterSnapshot report;
      report.cluster.set_asked(called);
      for (const auto& [other, up] : up_) {
        NodeReport& node = report.nodes.emplace_back();
        node.seen.mutable_record()->set_node_id(other);
        node.seen.set_address(other);
        node.seen.set_state(up ? "alive" : "gone");
      }
      return report;
    };
    calls.find = [this]() -> absl::StatusOr<std::string> {
      ++searches_;
      if (found_.empty()) return absl::UnavailableError("nobody");
      return found_;
    };
    return {address, calls};
  }

  std::map<std::string, bool> up_;
  std::vector<std::string> called_;
  std::string found_;
  int searches_ = 0;
};

TEST_F(StatusSourceTest, KeepsCallingTheNodeThatAnswers) {
  up_ = {{"a", true}, {"b", true}};
  StatusSource source = Source("b");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(source.Fetch().ok());
  EXPECT_THAT(called_, ElementsAre("b", "b", "b"));
}

TEST_F(StatusSourceTest, ContinuesWithAnotherKnownNode) {
  up_ = {{"a", true}, {"b", true}, {"c", false}, {"d", true}};
  StatusSource source = Source("b");
  ASSERT_TRUE(source.Fetch().ok());
  up_["b"] = up_["a"] = false;
  called_.clear();
  ASSERT_TRUE(source.Fetch().ok());
  EXPECT_THAT(called_, ElementsAre("b", "a", "d"));  // "c" was gone before
  EXPECT_EQ(source.address(), "d");
  // It does not go back to the first node.
  up_["b"] = true;
  EXPECT_TRUE(source.Fetch().ok());
  EXPECT_EQ(source.address(), "d");
  EXPECT_EQ(searches_, 0);
}

TEST_F(StatusSourceTest, LooksForANodeWhenAllAreGone) {
  up_ = {{"a", true}, {"b", true}};
  StatusSource source = Source("b");
  ASSERT_TRUE(source.Fetch().ok());
  up_ = {{"x", true}};
  found_ = "x";
  EXPECT_TRUE(source.Fetch().ok());
  EXPECT_EQ(source.address(), "x");
}

TEST_F(StatusSourceTest, ReportsTheNodeThatDoesNotAnswerAndKeepsTrying) {
  up_ = {{"b", true}};
  StatusSource source = Source("b");
  ASSERT_TRUE(source.Fetch().ok());
  up_["b"] = false;
  found_ = "b";  // stored on this machine, though no node listens there
  EXPECT_EQ(source.Fetch().status(), absl::UnavailableError("no node answers at b"));
  found_ = "y";  // no better
  EXPECT_EQ(source.Fetch().status(), absl::UnavailableError("no node answers at b"));
  up_["b"] = true;
  EXPECT_TRUE(source.Fetch().ok());
}

TEST_F(StatusSourceTest, TriesAFewOtherNodesAtATimeInTurn) {
  for (int i = 0; i < 8; ++i) up_[absl::StrCat("n", i)] = true;
  StatusSource source = Source("n0");
  ASSERT_TRUE(source.Fetch().ok());
  for (auto& [name, up] : up_) up = name == "n7";
  called_.clear();
  EXPECT_FALSE(source.Fetch().ok());
  EXPECT_THAT(called_, ElementsAre("n0", "n1", "n2", "n3"));
  called_.clear();
  EXPECT_FALSE(source.Fetch().ok());
  EXPECT_THAT(called_, ElementsAre("n0", "n4", "n5", "n6"));
  EXPECT_TRUE(source.Fetch().ok());
  EXPECT_EQ(source.address(), "n7");
}

}  // namespace
}  // namespace strata
