// Requests in a simulated cluster with faults, for many seeds. STRATA_SIM_RECOVERY_SEEDS sets how
// many of each kind, STRATA_SIM_FIRST_SEED where they begin.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "tests/sim/recovery_scenario.h"

namespace strata {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

RecoverySim::Counts PlayAll(RecoveryScenario scenario, uint64_t seeds) {
  const uint64_t first = FromEnvironment("STRATA_SIM_FIRST_SEED", 1);
  seeds = FromEnvironment("STRATA_SIM_RECOVERY_SEEDS", seeds);
  RecoverySim::Counts all;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    scenario.seed = seed;
    const RecoveryOutcome outcome = Play(scenario);
    EXPECT_EQ(outcome.wrong, "") << "seed " << seed;
    if (!outcome.wrong.empty()) break;
    all.Add(outcome.counts);
  }
  // For people; what counts is asserted.
  std::cout << seeds << " seeds: " << all.ToString() << "\n";
  return all;
}

TEST(RecoverySim, EveryRequestEndsOnceWithTheRightOutput) {
  const RecoverySim::Counts all = PlayAll({}, 150);
  // The seeds covered all of these.
  EXPECT_GT(all.complete, 0u);
  EXPECT_GT(all.recoveries, 0u);
  EXPECT_GT(all.kept, 0u);
  EXPECT_GT(all.resumed, 0u);
  EXPECT_GT(all.moves, 0u);
  EXPECT_GT(all.drains, 0u);
  EXPECT_GT(all.holds, 0u);
  EXPECT_GT(all.doubled, 0u);
  EXPECT_GT(all.lists, 0u);
  EXPECT_GT(all.lost_lists, 0u);
}

TEST(RecoverySim, NoRequestFailsWhileTheRestOfTheNodesCanHoldTheModel) {
  EXPECT_GT(PlayAll({.gentle = true}, 50).moves_by_reload, 0u);
}

// Whether one of the seeds fails with `words`.
bool Noticed(RecoveryScenario scenario, const std::string& words) {
  for (scenario.seed = 1; scenario.seed <= 400; ++scenario.seed) {
    if (Play(scenario).wrong.find(words) != std::string::npos) return true;
  }
  return false;
}

TEST(RecoverySim, NoticesPlansThatTakeMoreMemoryThanThereIs) {
  EXPECT_TRUE(Noticed({.plans_past_memory = true}, "a plan puts"));
}

TEST(RecoverySim, NoticesModelsThatGoWithTheirCoordinator) {
  EXPECT_TRUE(Noticed({.gentle = true, .forgets_pending_reloads = true}, "no node has the model"));
}

TEST(RecoverySim, NoticesTokensThatComeTwice) {
  EXPECT_TRUE(Noticed({.doubles_tokens = true}, "gets position"));
}

TEST(RecoverySim, NoticesRequestsThatNeverEnd) {
  EXPECT_TRUE(Noticed({.forgets_requests = true}, "never ends"));
}

TEST(RecoverySim, NoticesRequestsThatEndTwice) {
  EXPECT_TRUE(Noticed({.ends_twice = true}, "ends a second time"));
}

TEST(RecoverySim, NoticesStepsOfAnotherEpoch) {
  EXPECT_TRUE(Noticed({.takes_any_epoch = true}, "runs a step of epoch"));
}

TEST(RecoverySim, NoticesStagesThatStayOnADrainedNode) {
  EXPECT_TRUE(Noticed({.plans_on_drained_nodes = true}, "was drained and has stages"));
}

TEST(RecoverySim, NoticesModelsThatOutliveTheirLeases) {
  EXPECT_TRUE(Noticed({.forgets_leases = true}, "a model that nobody holds stays"));
}

TEST(RecoverySim, NoticesStagesThatNoPlanUses) {
  EXPECT_TRUE(Noticed({.forgets_stale_stages = true}, "a stage that no plan uses stays"));
}

TEST(RecoverySim, NoticesListsThatAreOnNoDisk) {
  EXPECT_TRUE(Noticed({.forgets_to_write = true}, "the disk of node"));
}

TEST(RecoverySim, NoticesModelsThatComeBackAfterAnUnload) {
  EXPECT_TRUE(Noticed({.forgets_unloads = true}, "a model that is to stay loaded is forgotten"));
}

TEST(RecoverySim, NoticesQueuesOverTheirBound) {
  EXPECT_TRUE(Noticed({.forgets_bounds = true}, "over its bound"));
}

TEST(RecoverySim, ASeedIsPlayedAlike) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const RecoveryOutcome once = Play({.seed = seed}), again = Play({.seed = seed});
    EXPECT_EQ(once.digest, again.digest) << "seed " << seed;
    EXPECT_EQ(once.counts.ToString(), again.counts.ToString()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace strata
