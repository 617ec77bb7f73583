#include "coordinator/models/live_migration.h"

#include <memory>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/models/placed_model.h"

namespace strata {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::strata::testing::Continue;
using ::strata::testing::Loadable;
using ::strata::testing::Place;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr bool kStops = true;

class LiveMigrationTest : public ::testing::Test {
 protected:
  LiveMigrationTest() {
    EXPECT_TRUE(from_->Load(Continue).ok());
    models_.Put(from_);
  }
  static Deployment::Options OptionsOf(const wire::Epoch& epoch) {
    Deployment::Options options = Loadable();
    options.broken = [] {};
    options.epoch = epoch;
    return options;
  }
  static wire::Epoch EpochOf(uint64_t counter) {
    wire::Epoch epoch;
    epoch.set_counter(counter);
    return epoch;
  }

  ModelTable models_{0};
  const ModelTable::DeploymentPtr from_ = Place(OptionsOf(EpochOf(1))).deployment;
  const ModelTable::DeploymentPtr next_ = Place(OptionsOf(EpochOf(2))).deployment;
  LiveMigration migration_{from_, next_};
};

TEST_F(LiveMigrationTest, TheLoadBesideEndsWithItsCallerOrWhatServes) {
  EXPECT_TRUE(migration_.MayGoOn(true));
  EXPECT_FALSE(migration_.MayGoOn(false));
  from_->LoseNode(std::string(32, 'a'));
  EXPECT_FALSE(migration_.MayGoOn(true));
}

TEST_F(LiveMigrationTest, ATakeOverIsNotCancelled) {
  migration_.BeginTakeOver();
  EXPECT_TRUE(migration_.MayGoOn(false));
}

TEST_F(LiveMigrationTest, TheNextOneHasThePlaceAndTheRequests) {
  EXPECT_FALSE(migration_.UnloadsStaleStages(absl::OkStatus(), models_));
  EXPECT_THAT(migration_.TakeOver(true, !kStops, &models_), IsOkAndHolds(true));
  EXPECT_EQ(models_.Get(next_->model_id()), next_);
  EXPECT_TRUE(migration_.has_taken_over());
  EXPECT_TRUE(migration_.UnloadsStaleStages(absl::OkStatus(), models_));
}

TEST_F(LiveMigrationTest, StaleStagesStayForTheRecoveryOfTheNextOne) {
  EXPECT_THAT(migration_.TakeOver(false, !kStops, &models_), IsOkAndHolds(false));
  EXPECT_FALSE(migration_.UnloadsStaleStages(absl::UnavailableError("lost"), models_));
  models_.Remove(next_);
  EXPECT_TRUE(migration_.UnloadsStaleStages(absl::UnavailableError("lost"), models_));
}

TEST_F(LiveMigrationTest, WhatDoesNotYieldItsStagesStays) {
  EXPECT_THAT(migration_.TakeOver(absl::UnavailableError("it lost a stage"), !kStops, &models_),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(models_.Get(from_->model_id()), from_);
  EXPECT_FALSE(migration_.UnloadsStaleStages(absl::UnavailableError("lost"), models_));
}

TEST_F(LiveMigrationTest, NothingTakesOverFromAModelThatWasUnloadedOrOnANodeThatStops) {
  EXPECT_THAT(migration_.TakeOver(true, kStops, &models_), StatusIs(absl::StatusCode::kCancelled));
  models_.Remove(from_);
  EXPECT_THAT(migration_.TakeOver(true, !kStops, &models_), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_FALSE(migration_.has_taken_over());
}

TEST_F(LiveMigrationTest, CachesComeFromTheStagesThatHaveTheLayers) {
  PlannedModel planned;
  planned.plan.stages.resize(2);
  planned.plan.stages[0].layers = {0, 1};
  planned.plan.stages[1].layers = {1, 2};
  const auto caches = CachesFor(planned, *from_);
  ASSERT_THAT(caches, SizeIs(2));
  EXPECT_THAT(caches[1], SizeIs(1));
  EXPECT_EQ(caches[1][0].stage.epoch().counter(), 1u);
  planned.plan.stages[1].layers = {2, 3};  // which it does not have
  EXPECT_THAT(CachesFor(planned, *from_), IsEmpty());
}

TEST_F(LiveMigrationTest, CachesDoNotMoveWhereAnOlderPlansStageIsKept) {
  PlannedModel planned;
  planned.plan.stages.resize(1);
  planned.plan.stages[0].layers = {0, 2};
  planned.kept.resize(1);
  planned.kept[0].emplace();
  *planned.kept[0]->mutable_epoch() = EpochOf(1);
  EXPECT_THAT(CachesFor(planned, *from_), SizeIs(1));
  planned.kept[0]->set_stage(1);
  EXPECT_THAT(CachesFor(planned, *from_), IsEmpty());
  planned.kept[0]->set_stage(0);
  *planned.kept[0]->mutable_epoch() = EpochOf(0);
  EXPECT_THAT(CachesFor(planned, *from_), IsEmpty());
}

}  // namespace
}  // namespace strata
