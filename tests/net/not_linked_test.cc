// Two machines that do not reach each other, and one between them that reaches both: two groups,
// and nobody takes another coordinator's memory or stages.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/net/three_hosts.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class NotLinkedTest : public testing::ThreeHosts {
 protected:
  static constexpr size_t kBetween = 1;

  std::string CoordinatorOf(size_t host) const {
    const nlohmann::json nodes = nodes_[host]->Nodes();
    return nodes.is_object() && nodes["coordinator"].is_string() ? nodes["coordinator"] : "";
  }
  // Whether `end` is alone, and the two others are a group.
  bool IsAlone(size_t end) const {
    const std::string theirs = CoordinatorOf(kBetween);
    return CoordinatorOf(end) == nodes_[end]->id() && theirs != nodes_[end]->id() &&
           !theirs.empty() && CoordinatorOf(2 - end) == theirs;
  }

  std::vector<int32_t> Run(size_t host) const {
    return TokensOf(host, "run 'Strata demo' 'The old captain' --temperature 0 --max-tokens 24");
  }
};

TEST_F(NotLinkedTest, EachCoordinatorPlansForWhoObeysIt) {
  size_t coordinator = hosts_.size();
  ASSERT_TRUE(Eventually([&] { return AgreeOn(nodes_, &coordinator); }))
      << "they are not one group";
  lan_->Lose(*hosts_[0], hosts_[2].get(), "eth0", 100);
  lan_->Lose(*hosts_[2], hosts_[0].get(), "eth0", 100);
  size_t alone = 0;
  ASSERT_TRUE(Eventually([&] {
    alone = IsAlone(0) ? 0 : 2;
    return IsAlone(alone);
  }));
  const size_t end = 2 - alone;
  const std::string load = absl::StrCat("load ", STRATA_DEMO_MODEL);
  const auto halves = [&](size_t first) {
    return absl::StrCat(" --assign ", hosts_[first]->name(), "=0-2,", hosts_[kBetween]->name(),
                        "=3-5");
  };
  Outcome outcome = Strata(end, load + halves(end));
  ASSERT_TRUE(outcome.ok) << outcome.text;
  const std::vector<int32_t> tokens = Run(end);
  ASSERT_THAT(tokens, SizeIs(24));

  // The node sees the one between, whose coordinator is another one.
  EXPECT_TRUE(nodes_[alone]->Sees(*nodes_[kBetween]));
  outcome = Strata(alone, load + halves(alone));
  EXPECT_FALSE(outcome.ok) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr(absl::StrCat("not all nodes reach each other and they "
                                                   "have another coordinator, or none yet: ",
                                                   hosts_[kBetween]->name())));
  outcome = Strata(alone, load);
  EXPECT_TRUE(outcome.ok) << outcome.text;
  EXPECT_EQ(Run(alone), tokens) << nodes_[alone]->errors();
  EXPECT_EQ(Run(end), tokens) << nodes_[end]->errors();
  EXPECT_THAT(nodes_[end]->errors(), Not(HasSubstr("lost a stage")));
  EXPECT_THAT(nodes_[kBetween]->errors(), Not(HasSubstr("lost a stage")));
}

}  // namespace
}  // namespace strata
