#include "coordinator/models/stage_reclaimer.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const SteadyTime kStart = SteadyTime() + absl::Hours(1);

TEST(StageReclaimer, LooksAtOnceAndThenMoreAndMoreRarely) {
  StageReclaimer reclaimer;
  EXPECT_EQ(reclaimer.due_at(), SteadyTime::InfinitePast());
  SteadyTime now = kStart;
  for (const int seconds : {5, 10, 20, 40, 60, 60}) {
    reclaimer.Begin();
    EXPECT_EQ(reclaimer.due_at(), SteadyTime::InfiniteFuture());
    reclaimer.End(/*found_none=*/true, now);
    EXPECT_EQ(reclaimer.due_at(), now + absl::Seconds(seconds));
    now = reclaimer.due_at();
  }
  reclaimer.Begin();
  reclaimer.End(/*found_none=*/false, now);
  reclaimer.Begin();
  reclaimer.End(/*found_none=*/false, now);
  EXPECT_EQ(reclaimer.due_at(), now + absl::Seconds(5));
}

TEST(StageReclaimer, AChangeDuringALookIsLookedAt) {
  StageReclaimer reclaimer;
  reclaimer.Begin();
  reclaimer.OnMembersChanged();
  reclaimer.End(/*found_none=*/true, kStart);
  EXPECT_EQ(reclaimer.due_at(), SteadyTime::InfinitePast());
  // And the look that sees it is the first of a row.
  reclaimer.Begin();
  reclaimer.End(/*found_none=*/true, kStart);
  EXPECT_EQ(reclaimer.due_at(), kStart + absl::Seconds(5));
}

TEST(StageReclaimer, LooksAtOnceWhenTheRoleMayBeActedOnAgain) {
  StageReclaimer reclaimer;
  reclaimer.Begin();
  reclaimer.End(/*found_none=*/true, kStart);
  reclaimer.OnMayAct();
  EXPECT_EQ(reclaimer.due_at(), SteadyTime::InfinitePast());
  reclaimer.Begin();
  reclaimer.End(/*found_none=*/true, kStart);
  EXPECT_EQ(reclaimer.due_at(), kStart + absl::Seconds(10));  // more and more rarely as before
}

TEST(StageReclaimer, ADeploymentsEndIsLookedAtSoon) {
  StageReclaimer reclaimer;
  for (int i = 0; i < 5; ++i) {
    reclaimer.Begin();
    reclaimer.End(/*found_none=*/true, kStart);
  }
  reclaimer.OnDeploymentEnded(kStart);
  EXPECT_EQ(reclaimer.due_at(), kStart + absl::Seconds(5));
}

wire::Epoch EpochOf(uint64_t counter) {
  wire::Epoch epoch;
  epoch.set_counter(counter);
  epoch.set_coordinator_id(std::string(32, 'a'));
  return epoch;
}

wire::StageStatus Stage(uint64_t epoch, const std::string& model,
                        wire::StageStatus::State state = wire::StageStatus::SERVING) {
  wire::StageStatus stage;
  *stage.mutable_epoch() = EpochOf(epoch);
  stage.set_model_id(model);
  stage.set_state(state);
  wire::LoadModelRequest origin;
  origin.set_model_id(model);
  stage.set_origin(origin.SerializeAsString());
  return stage;
}

TEST(FindStaleStages, OnlyThoseOfNoPlanAreStale) {
  StageInventory loaded;
  loaded.nodes = {{Stage(1, "m"), Stage(2, "m")}, {}, {Stage(2, "m")}};
  loaded.known = {EpochOf(2)};
  const StaleStages stale = FindStaleStages(loaded);
  ASSERT_THAT(stale.stages, SizeIs(1));
  EXPECT_EQ(stale.stages[0].node, 0u);
  EXPECT_EQ(stale.stages[0].stage, 0u);
  EXPECT_TRUE(stale.stages[0].makes_room);
  EXPECT_FALSE(stale.found_none);
  loaded.nodes[0].erase(loaded.nodes[0].begin());
  EXPECT_TRUE(FindStaleStages(loaded).found_none);
}

TEST(FindStaleStages, ThoseOfProgramsThatCoordinateForThemselvesAreLeftAlone) {
  StageInventory loaded;
  loaded.nodes = {{Stage(1, "m")}};
  loaded.nodes[0][0].mutable_epoch()->set_coordinator_id("bench");
  const StaleStages stale = FindStaleStages(loaded);
  EXPECT_THAT(stale.stages, IsEmpty());
  EXPECT_TRUE(stale.found_none);
}

TEST(FindStaleStages, WhatANextPlanMayKeepStays) {
  StageInventory loaded;
  loaded.nodes = {{Stage(1, "kept"), Stage(1, "kept", wire::StageStatus::FAILED), Stage(1, "kept"),
                   Stage(1, "other")}};
  loaded.nodes[0][2].set_n_cpu_moe(1);
  loaded.kept = {"kept"};
  const StaleStages stale = FindStaleStages(loaded);
  ASSERT_THAT(stale.stages, SizeIs(3));  // neither failed ones, nor those with experts elsewhere
  EXPECT_FALSE(stale.stages[0].makes_room);
  EXPECT_FALSE(stale.stages[1].makes_room);
  EXPECT_TRUE(stale.stages[2].makes_room);
  EXPECT_FALSE(stale.found_none);
}

TEST(FindStaleStages, ANewCoordinatorLearnsOfModelsThatCallersHold) {
  StageInventory loaded;
  loaded.learns = true;
  loaded.kept = {"f", "m"};
  wire::StageStatus held = Stage(1, "held");
  wire::LoadModelRequest origin;
  origin.set_model_id("held");
  origin.set_hold(true);
  held.set_origin(origin.SerializeAsString());
  // The stage that says so comes after another one of the same model.
  wire::StageStatus silent = Stage(1, "held");
  silent.clear_origin();
  loaded.nodes = {{silent, held, Stage(1, "m"), Stage(1, "f", wire::StageStatus::FAILED),
                   Stage(1, "u", wire::StageStatus::LOADING)}};
  const StaleStages stale = FindStaleStages(loaded);
  EXPECT_THAT(stale.held, ElementsAre("held"));
  std::vector<std::string> unloaded;
  for (const StaleStages::Stage& stage : stale.stages) {
    unloaded.push_back(loaded.nodes[stage.node][stage.stage].model_id());
  }
  EXPECT_THAT(unloaded, ElementsAre("f", "u"));
}

}  // namespace
}  // namespace strata
