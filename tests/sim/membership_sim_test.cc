// Membership in a simulated network, for many seeds. STRATA_SIM_SEEDS sets how many for each size,
// STRATA_SIM_LARGE_SEEDS how many for 200 nodes, STRATA_SIM_FIRST_SEED where they begin.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/cluster_sim.h"

namespace strata {
namespace {

constexpr size_t kNobody = SIZE_MAX;
// What the cluster has after the last change.
constexpr int64_t kRestMs = 5000;
constexpr int64_t kStepMs = 250;
// For so long it is watched when nothing happens any more.
constexpr int64_t kQuietMs = 3000;
constexpr int64_t kMoveMs = 2000;  // of one member, and what follows
// In which members have moved to greater groups: a few seconds each, one after the other.
constexpr int64_t kMovedMs = 60'000;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// One thing happens to the cluster. With `cliques` only what leaves the links transitive.
void Disturb(ClusterSim* sim, size_t nodes, bool cliques) {
  const size_t n = sim->Random(nodes), m = sim->Random(nodes);
  switch (sim->Random(cliques ? 10 : 14)) {
    case 0:
      sim->Crash(n);
      break;
    case 1:
    case 2:
      if (!sim->running(n)) sim->Start(n, 1 + sim->Random(3));
      break;
    case 3:
      sim->Start(n, 1 + sim->Random(3));
      break;
    case 4:
      sim->Pause(n, 100 + static_cast<int64_t>(sim->Random(6000)));
      break;
    case 5: {
      const size_t groups = 2 + sim->Random(2);
      std::vector<size_t> group_of(nodes);
      for (size_t& group : group_of) group = sim->Random(groups);
      sim->Partition(group_of);
      break;
    }
    case 6:
      sim->Heal();
      break;
    case 7:
      sim->SetLive(n, static_cast<uint32_t>(sim->Random(6)));
      break;
    case 8:
      sim->Plan(n);
      break;
    case 9:
      sim->Leave(n);
      break;
    case 10:
    case 11:
      sim->Note(absl::StrCat("cut ", n, " to ", m));
      sim->Cut(n, m);
      break;
    case 12:
      sim->Note(absl::StrCat("cut ", n, " and ", m));
      sim->Cut(n, m);
      sim->Cut(m, n);
      break;
    default:
      sim->Isolate(n, sim->Random(2) == 0);
      break;
  }
}

struct Scenario {
  uint64_t seed = 1;
  size_t nodes = 3;
  bool cliques = false;
  bool ignore_lease = false;
  bool through_wire = false;
  int64_t disturb_ms = 12'000;
  size_t disturb_every_ms = 1500;  // at most
  double loss = 0;                 // of messages, from beginning to end
  int64_t rest_ms = kRestMs;
  bool stays = true;        // what has come to rest stays as it is
  bool until_moved = true;  // it is watched until all that should have moved
};

std::vector<size_t> Coordinators(ClusterSim* sim, size_t nodes) {
  std::vector<size_t> coordinators(nodes, kNobody);
  for (size_t n = 0; n < nodes; ++n) {
    if (sim->running(n)) coordinators[n] = sim->CoordinatorOf(n);
  }
  return coordinators;
}

// A cluster at rest: what is wrong with how it goes on. Nothing changes, unless members should move
// to greater groups: they do, and what has live requests stays together all the same.
std::string Watch(ClusterSim* sim, const Scenario& scenario) {
  const std::vector<size_t> first = Coordinators(sim, scenario.nodes);
  const std::vector<bool> working = sim->InWorkingGroups();
  std::vector<size_t> before = first;
  bool moves = !sim->Unmoved().empty();
  int64_t quiet_ms = 0;
  for (int64_t ms = 0; quiet_ms < kQuietMs; ms += kStepMs, quiet_ms += kStepMs) {
    sim->RunMs(kStepMs);
    if (!sim->violation().empty()) return sim->violation() + sim->Trace();
    const std::vector<size_t> now = Coordinators(sim, scenario.nodes);
    for (size_t n = 0; n < scenario.nodes; ++n) {
      if (now[n] == first[n]) continue;
      if (!moves) return "a group at rest changed its coordinator" + sim->Trace();
      if (working[n]) return "a group with live requests lost a member" + sim->Trace();
    }
    const bool due = !sim->Unmoved().empty();
    if (now != before || due) quiet_ms = 0;
    moves = moves || due;
    before = now;
    if (moves && !scenario.until_moved && ms >= kQuietMs) return "";
    if (ms > kMovedMs) return absl::StrCat("still restless: ", sim->Unmoved()) + sim->Trace();
  }
  const std::string unrest = sim->Unrest();
  return unrest.empty() ? "" : unrest + sim->Trace();
}

// Returns what went wrong. `slowest_ms` becomes how long rest took, if that is more.
std::string Play(const Scenario& scenario, int64_t* slowest_ms) {
  ClusterSim::Options options;
  options.seed = scenario.seed;
  options.nodes = scenario.nodes;
  options.membership.unsafe_ignore_lease = scenario.ignore_lease;
  options.membership.nodes_max = scenario.nodes + 8;
  options.through_wire = scenario.through_wire;
  ClusterSim sim(options);
  for (size_t n = 0; n < scenario.nodes; ++n) {
    if (sim.Random(10) != 0) sim.Start(n, 2);
  }
  sim.SetLoss(std::max(scenario.loss, sim.Random(3) == 0 ? 0.1 : 0.0));
  for (int64_t ms = 0; ms < scenario.disturb_ms && sim.violation().empty();) {
    const auto step = static_cast<int64_t>(1 + sim.Random(scenario.disturb_every_ms));
    sim.RunMs(step);
    ms += step;
    Disturb(&sim, scenario.nodes, scenario.cliques);
  }
  sim.SetLoss(scenario.loss);
  // Sleepers wake; what they slept through counts as a change.
  for (size_t n = 0; n < scenario.nodes; ++n) sim.Pause(n, 0);
  sim.Introduce();
  sim.Note("the last change");
  std::string unrest;
  int64_t until_ms = scenario.rest_ms;
  for (int64_t ms = kStepMs; ms <= until_ms; ms += kStepMs) {
    sim.RunMs(kStepMs);
    if (!sim.violation().empty()) return sim.violation() + sim.Trace();
    unrest = sim.Unrest();
    if (unrest.empty() && (!scenario.stays || ms >= scenario.rest_ms)) break;
    if (unrest.empty()) {
      // A member that is just moving when the time is up may arrive.
      until_ms = scenario.rest_ms + (sim.Unmoved().empty() ? 0 : kMoveMs);
    } else if (until_ms == scenario.rest_ms) {
      *slowest_ms = std::max(*slowest_ms, ms);
    }
  }
  if (!unrest.empty()) return unrest + sim.Trace();
  return scenario.stays ? Watch(&sim, scenario) : "";
}

void PlayAll(Scenario scenario, uint64_t seeds, const char* variable = "STRATA_SIM_SEEDS") {
  const uint64_t first = FromEnvironment("STRATA_SIM_FIRST_SEED", 1);
  seeds = FromEnvironment(variable, seeds);
  int64_t slowest_ms = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    scenario.seed = seed;
    const std::string wrong = Play(scenario, &slowest_ms);
    ASSERT_EQ(wrong, "") << "seed " << seed << ", " << scenario.nodes << " nodes";
  }
  // For people; what counts is asserted.
  std::cout << seeds << " seeds came to rest, the slowest within " << slowest_ms + kStepMs
            << " ms\n";
}

TEST(MembershipSim, ThreeNodesAgree) { PlayAll({.nodes = 3}, 400); }
TEST(MembershipSim, FiveNodesAgree) { PlayAll({.nodes = 5}, 300); }
TEST(MembershipSim, EightNodesAgree) { PlayAll({.nodes = 8}, 150); }
TEST(MembershipSim, EightNodesOfTransitiveLinksAgree) {
  PlayAll({.nodes = 8, .cliques = true}, 150);
}
TEST(MembershipSim, TwentyNodesAgree) { PlayAll({.nodes = 20, .disturb_every_ms = 700}, 30); }
TEST(MembershipSim, FourNodesAgreeOverTheWire) { PlayAll({.nodes = 4, .through_wire = true}, 20); }

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
  PlayAll({.nodes = 200, .disturb_ms = 6000, .disturb_every_ms = 150, .until_moved = false}, 1,
          "STRATA_SIM_LARGE_SEEDS");
}

TEST(MembershipSim, NoticesNodesThatBreakTheirLease) {
  size_t noticed = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    int64_t slowest_ms = 0;
    const std::string wrong = Play({.seed = seed, .nodes = 5, .ignore_lease = true}, &slowest_ms);
    if (wrong.find("holds its lease") != std::string::npos) ++noticed;
  }
  EXPECT_GT(noticed, 0u);
}

}  // namespace
}  // namespace strata
