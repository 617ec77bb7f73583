// Membership in a simulated network, for many seeds. STRATA_SIM_SEEDS sets how many for each size,
// STRATA_SIM_LARGE_SEEDS how many for 200 nodes, STRATA_SIM_FIRST_SEED where they begin.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/scenario.h"

namespace strata {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

void PlayAll(Scenario scenario, uint64_t seeds, const char* variable = "STRATA_SIM_SEEDS") {
  const uint64_t first = FromEnvironment("STRATA_SIM_FIRST_SEED", 1);
  seeds = FromEnvironment(variable, seeds);
  int64_t slowest_ms = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    scenario.seed = seed;
    const Outcome outcome = Play(scenario);
    slowest_ms = std::max(slowest_ms, outcome.rest_ms);
    ASSERT_EQ(outcome.wrong, "") << "seed " << seed << ", " << scenario.nodes << " nodes";
  }
  // For people; what counts is asserted.
  std::cout << seeds << " seeds came to rest, the slowest within " << slowest_ms << " ms\n";
}

TEST(MembershipSim, ThreeNodesAgree) { PlayAll({.nodes = 3}, 400); }
TEST(MembershipSim, FiveNodesAgree) { PlayAll({.nodes = 5}, 300); }
TEST(MembershipSim, EightNodesAgree) { PlayAll({.nodes = 8}, 150); }
TEST(MembershipSim, EightNodesOfTransitiveLinksAgree) {
  PlayAll({.nodes = 8, .cliques = true}, 150);
}
TEST(MembershipSim, TwentyNodesAgree) { PlayAll({.nodes = 20, .disturb_every_ms = 700}, 30); }
TEST(MembershipSim, FourNodesAgreeOverTheWire) { PlayAll({.nodes = 4, .through_wire = true}, 20); }

// Where all is calm again between two things that happen.
TEST(MembershipSim, ThreeNodesAgreeThatAreCalmAtOnce) {
  PlayAll({.nodes = 3, .calm_after_ms = 300}, 400);
}
TEST(MembershipSim, EightNodesAgreeThatAreCalmAtOnce) {
  PlayAll({.nodes = 8, .calm_after_ms = 300}, 150);
}
TEST(MembershipSim, TwentyNodesAgreeThatAreCalmAtOnce) {
  PlayAll({.nodes = 20, .disturb_every_ms = 5000, .calm_after_ms = 300}, 30);
}

// What membership.h promises while messages are lost.
TEST(MembershipSim, NodesAgreeAndStayWhileATenthOfAllMessagesIsLost) {
  PlayAll({.nodes = 5, .loss = 0.1}, 100);
}
TEST(MembershipSim, NodesAgreeAndStayWhileAFifthOfAllMessagesIsLost) {
  PlayAll({.nodes = 5, .loss = 0.2}, 100);
}
TEST(MembershipSim, NodesFindTogetherWhileThreeTenthsOfAllMessagesAreLost) {
  PlayAll({.nodes = 5, .loss = 0.3, .rest_ms = 10'000, .stays = false}, 100);
}

TEST(MembershipSim, TwoHundredNodesAgree) {
  PlayAll(LargeScenario(1), 2, "STRATA_SIM_LARGE_SEEDS");
}

TEST(MembershipSim, NoticesNodesThatBreakTheirLease) {
  size_t noticed = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const Outcome outcome = Play({.seed = seed, .nodes = 5, .ignore_lease = true});
    if (outcome.wrong.find("holds its lease") != std::string::npos) ++noticed;
  }
  EXPECT_GT(noticed, 0u);
}

}  // namespace
}  // namespace strata
