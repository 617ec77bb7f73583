#include "tests/sim/scenario.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster_sim.h"

namespace strata {
namespace {

constexpr size_t kNobody = SIZE_MAX;
constexpr int64_t kStepMs = 250;
// How long the cluster is watched when no fault happens any more.
constexpr int64_t kQuietMs = 3000;
constexpr int64_t kMoveMs = 2000;  // of one member, and what follows
// In which members have moved to greater groups: a few seconds each, one after the other.
constexpr int64_t kMovedMs = 60'000;

// One thing happens to the cluster. With `cliques` only what leaves the links transitive.
void Disturb(ClusterSim& sim, size_t nodes, bool cliques) {
  const size_t n = sim.Random(nodes), m = sim.Random(nodes);
  switch (sim.Random(cliques ? 10 : 15)) {
    case 0:
      sim.Crash(n);
      break;
    case 1:
    case 2:
      if (!sim.running(n)) sim.Start(n, 1 + sim.Random(3));
      break;
    case 3:
      sim.Start(n, 1 + sim.Random(3));
      break;
    case 4:
      sim.Pause(n, 100 + static_cast<int64_t>(sim.Random(6000)));
      break;
    case 5: {
      const size_t groups = 2 + sim.Random(2);
      std::vector<size_t> group_of(nodes);
      for (size_t& group : group_of) group = sim.Random(groups);
      sim.Partition(group_of);
      break;
    }
    case 6:
      sim.Heal();
      break;
    case 7:
      sim.SetLive(n, static_cast<uint32_t>(sim.Random(6)));
      break;
    case 8:
      sim.Plan(n);
      break;
    case 9:
      sim.Leave(n);
      break;
    case 10:
    case 11:
      sim.Note(absl::StrCat("cut ", n, " to ", m));
      sim.Cut(n, m);
      break;
    case 12:
      sim.Note(absl::StrCat("cut ", n, " and ", m));
      sim.Cut(n, m);
      sim.Cut(m, n);
      break;
    case 13:
      // Connections lose nothing; a lost message stands for a late one.
      if (sim.loss() == 0) sim.Refuse(n, m);
      break;
    default:
      sim.Isolate(n, sim.Random(2) == 0);
      break;
  }
}

std::vector<size_t> Coordinators(ClusterSim& sim, size_t nodes) {
  std::vector<size_t> coordinators(nodes, kNobody);
  for (size_t n = 0; n < nodes; ++n) {
    if (sim.running(n)) coordinators[n] = sim.CoordinatorOf(n);
  }
  return coordinators;
}

// A cluster at rest: what is wrong with how it goes on. Nothing changes, unless members should move
// to greater groups: they do, and what has live requests stays together all the same.
std::string Watch(ClusterSim& sim, const Scenario& scenario) {
  const std::vector<size_t> first = Coordinators(sim, scenario.nodes);
  const std::vector<bool> working = sim.InWorkingGroups();
  std::vector<size_t> before = first;
  bool moves = !sim.Unmoved().empty();
  int64_t quiet_ms = 0;
  for (int64_t ms = 0; quiet_ms < kQuietMs; ms += kStepMs, quiet_ms += kStepMs) {
    sim.RunMs(kStepMs);
    if (!sim.violation().empty()) return sim.violation() + sim.Trace();
    const std::vector<size_t> now = Coordinators(sim, scenario.nodes);
    for (size_t n = 0; n < scenario.nodes; ++n) {
      if (now[n] == first[n]) continue;
      if (!moves) return "a group at rest changed its coordinator" + sim.Trace();
      if (working[n]) return "a group with live requests lost a member" + sim.Trace();
    }
    const bool due = !sim.Unmoved().empty();
    if (now != before || due) quiet_ms = 0;
    moves = moves || due;
    before = now;
    if (moves && !scenario.until_moved && ms >= kQuietMs) return "";
    if (ms > kMovedMs) return absl::StrCat("still restless: ", sim.Unmoved()) + sim.Trace();
  }
  const std::string unrest = sim.Unrest();
  return unrest.empty() ? "" : unrest + sim.Trace();
}

std::string PlayOn(ClusterSim& sim, const Scenario& scenario, int64_t* rest_ms) {
  for (size_t n = 0; n < scenario.nodes; ++n) {
    if (sim.Random(10) != 0) sim.Start(n, 2);
  }
  sim.SetLoss(std::max(scenario.loss, sim.Random(3) == 0 ? 0.1 : 0.0));
  for (int64_t ms = 0; ms < scenario.disturb_ms && sim.violation().empty();) {
    const auto step = static_cast<int64_t>(1 + sim.Random(scenario.disturb_every_ms));
    sim.RunMs(step);
    ms += step;
    Disturb(sim, scenario.nodes, scenario.cliques);
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
      *rest_ms = ms + kStepMs;
    }
  }
  if (!unrest.empty()) return unrest + sim.Trace();
  return scenario.stays ? Watch(sim, scenario) : "";
}

}  // namespace

Scenario LargeScenario(uint64_t seed) {
  return {.seed = seed,
          .nodes = 200,
          .disturb_ms = 6000,
          .disturb_every_ms = 150,
          .until_moved = false};
}

Outcome Play(const Scenario& scenario) {
  ClusterSim::Options options;
  options.seed = scenario.seed;
  options.nodes = scenario.nodes;
  options.membership.unsafe_ignore_lease = scenario.ignore_lease;
  options.membership.nodes_max = scenario.nodes + 8;
  options.membership.calm_after_ms = scenario.calm_after_ms;
  options.through_wire = scenario.through_wire;
  ClusterSim sim(options);
  Outcome outcome;
  outcome.wrong = PlayOn(sim, scenario, &outcome.rest_ms);
  outcome.messages = sim.messages();
  outcome.digest = sim.digest();
  return outcome;
}

}  // namespace strata
