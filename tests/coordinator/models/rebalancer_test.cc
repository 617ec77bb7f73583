#include "coordinator/models/rebalancer.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/models/placed_model.h"

namespace strata {
namespace {

using ::strata::testing::Continue;
using ::strata::testing::Loadable;
using ::strata::testing::Place;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Reuse = PlanningOptions::Reuse;
using Step = ModelRebalance::Step;

const SteadyTime kStart = SteadyTime() + absl::Hours(1);
constexpr SteadyTime kNever = SteadyTime::InfiniteFuture();
constexpr bool kMayAct = true;

TEST(RebalanceSchedule, LooksSomeTimeAfterTheLastChange) {
  RebalanceSchedule schedule;
  EXPECT_EQ(schedule.at(), kNever);
  schedule.OnChange(kStart);
  schedule.OnChange(kStart + absl::Seconds(4));
  EXPECT_EQ(schedule.at(), kStart + absl::Seconds(9));
}

TEST(RebalanceSchedule, LooksAgainWhereAPlanMayBeBetterSoon) {
  RebalanceSchedule schedule;
  schedule.OnChange(kStart);
  schedule.Begin(ModelTable(0), kMayAct, kStart);
  schedule.End(/*again=*/false, kNever, kStart);
  EXPECT_EQ(schedule.at(), kNever);
  schedule.End(/*again=*/true, kNever, kStart);
  EXPECT_EQ(schedule.at(), kStart + absl::Seconds(30));
  schedule.End(/*again=*/false, kStart + absl::Seconds(20), kStart);
  EXPECT_EQ(schedule.at(), kStart + absl::Seconds(20));
}

TEST(RebalanceSchedule, AChangeDuringALookIsNotForgotten) {
  RebalanceSchedule schedule;
  schedule.Begin(ModelTable(0), kMayAct, kStart);
  schedule.OnChange(kStart);
  schedule.End(/*again=*/true, kNever, kStart + absl::Seconds(1));
  EXPECT_EQ(schedule.at(), kStart + absl::Seconds(5));
}

class RebalanceTest : public ::testing::Test {
 protected:
  ModelTable::DeploymentPtr Serving(const std::string& assign = "", bool experts_on_cpu = false) {
    Deployment::Options options = Loadable();
    options.broken = [] {};
    options.request.mutable_placement()->set_assign(assign);
    const ModelTable::DeploymentPtr model = Place(std::move(options)).deployment;
    if (experts_on_cpu) model->mutable_planned()->plan.stages[0].n_cpu_moe = 1;
    EXPECT_TRUE(model->Load(Continue).ok());
    models_.Put(model);
    return model;
  }
  // A step takes so long; kept: no stage is loaded anew.
  static std::unique_ptr<PlannedModel> Planned(double step_s, bool kept = false,
                                               size_t stages = 1) {
    auto planned = std::make_unique<PlannedModel>();
    planned->plan.stages.resize(stages);
    planned->plan.times.front().step_s = step_s;
    planned->kept.resize(stages);
    if (kept) planned->kept[0].emplace();
    return planned;
  }
  // A look at a model with a plan of 1 s that finds a better one.
  ModelRebalance Found(double step_s, uint32_t active_requests) {
    ModelRebalance rebalance(*Serving());
    EXPECT_EQ(rebalance.step(), Step::kPlanAsItIs);
    rebalance.OnPlanned(Planned(1), active_requests);
    EXPECT_EQ(rebalance.step(), Step::kPlanBetter);
    rebalance.OnPlanned(Planned(step_s), active_requests);
    return rebalance;
  }
  static absl::Status NoRoom() { return absl::ResourceExhaustedError("no room"); }

  ModelTable models_{0};
};

TEST_F(RebalanceTest, ALookIsAtModelsThatServeAndOnlyByACoordinator) {
  const ModelTable::DeploymentPtr model = Serving();
  RebalanceSchedule schedule;
  EXPECT_THAT(schedule.Begin(models_, /*may_act=*/false, kStart), IsEmpty());
  EXPECT_THAT(schedule.Begin(models_, kMayAct, kStart), ElementsAre(model));
}

TEST_F(RebalanceTest, ARecoveryComesFirst) {
  Serving()->LoseNode(std::string(32, 'a'));
  RebalanceSchedule schedule;
  EXPECT_THAT(schedule.Begin(models_, kMayAct, kStart), IsEmpty());
  EXPECT_EQ(schedule.at(), kStart + absl::Seconds(5));
}

TEST_F(RebalanceTest, BothPlansAreForTheSamePositionsWhateverRequestsDoMeanwhile) {
  ModelRebalance rebalance(*Serving());
  const std::optional<uint32_t> positions = rebalance.planning().positions;
  EXPECT_TRUE(positions.has_value());
  rebalance.OnPlanned(Planned(1), 0);
  ASSERT_EQ(rebalance.step(), Step::kPlanBetter);
  EXPECT_EQ(rebalance.planning().positions, positions);
}

TEST_F(RebalanceTest, TheBetterPlanIsForTheRoomBesideTheLoadedStages) {
  ModelRebalance rebalance(*Serving());
  EXPECT_EQ(rebalance.placement().n_ctx(), 64u);
  EXPECT_EQ(rebalance.planning().reuse, Reuse::kAround);
  EXPECT_FALSE(rebalance.planning().beside);
  rebalance.OnPlanned(Planned(1), 0);
  EXPECT_EQ(rebalance.planning().reuse, Reuse::kMatched);
  EXPECT_TRUE(rebalance.planning().beside);
}

TEST_F(RebalanceTest, AModelMovesForMuchThoughRequestsPause) {
  ModelRebalance rebalance = Found(0.75, /*active_requests=*/3);
  ASSERT_EQ(rebalance.step(), Step::kMove);
  EXPECT_THAT(rebalance.reason(), HasSubstr("25 % less with the nodes there are now"));
  EXPECT_EQ(rebalance.TakePlan()->plan.times.front().step_s, 0.75);
}

TEST_F(RebalanceTest, ForLittleItMovesOnlyWhenItIsIdle) {
  const ModelRebalance idle = Found(0.9, 0);
  EXPECT_EQ(idle.step(), Step::kMove);
  EXPECT_THAT(idle.reason(), HasSubstr("10 % less then, and it is idle"));
  const ModelRebalance busy = Found(0.9, 1);
  EXPECT_EQ(busy.step(), Step::kEnd);
  EXPECT_TRUE(busy.looks_again());
}

TEST_F(RebalanceTest, ForNothingItStays) {
  const ModelRebalance rebalance = Found(0.99, 0);
  EXPECT_EQ(rebalance.step(), Step::kEnd);
  EXPECT_FALSE(rebalance.looks_again());
}

TEST_F(RebalanceTest, FewerStagesThatAreNoSlowerAreBetter) {
  const ModelTable::DeploymentPtr model = Serving();
  model->mutable_planned()->plan.stages.resize(2);
  ModelRebalance rebalance(*model);
  rebalance.OnPlanned(Planned(1, true, 2), 0);
  rebalance.OnPlanned(Planned(0.99), 0);
  EXPECT_EQ(rebalance.step(), Step::kMove);
}

TEST_F(RebalanceTest, WhileNodesMeasureItLooksAgain) {
  ModelRebalance rebalance(*Serving());
  auto planned = Planned(1);
  planned->report.nodes.emplace_back();  // no device of it is known
  rebalance.OnPlanned(std::move(planned), 0);
  EXPECT_EQ(rebalance.step(), Step::kEnd);
  EXPECT_TRUE(rebalance.looks_again());
}

TEST_F(RebalanceTest, WithoutAPlanItStays) {
  ModelRebalance as_it_is(*Serving()), better(*Serving());
  as_it_is.OnPlanned(NoRoom(), 0);
  EXPECT_EQ(as_it_is.step(), Step::kEnd);
  better.OnPlanned(Planned(1), 0);
  better.OnPlanned(NoRoom(), 0);
  EXPECT_EQ(better.step(), Step::kEnd);
  EXPECT_FALSE(better.looks_again());
}

TEST_F(RebalanceTest, AssignedLayersGoBackToWhereTheyWereAssigned) {
  const ModelTable::DeploymentPtr model = Serving("attic=0-1");
  ModelRebalance back(*model), there(*model), gone(*model);
  EXPECT_EQ(back.step(), Step::kPlanAsAssigned);
  EXPECT_EQ(back.planning().reuse, Reuse::kAround);
  EXPECT_TRUE(back.planning().beside);
  back.OnPlanned(Planned(2), 1);
  EXPECT_EQ(back.step(), Step::kMove);
  EXPECT_THAT(back.reason(), HasSubstr("assigned"));
  there.OnPlanned(Planned(2, /*kept=*/true), 1);
  EXPECT_EQ(there.step(), Step::kEnd);
  EXPECT_EQ(gone.placement().assign(), "attic=0-1");
  gone.OnPlanned(NoRoom(), 1);
  EXPECT_EQ(gone.step(), Step::kPlanAsItIs);
  EXPECT_EQ(gone.placement().assign(), "");
}

TEST_F(RebalanceTest, AModelWithExpertsOnACpuOrThatDoesNotServeStays) {
  EXPECT_EQ(ModelRebalance(*Serving("", /*experts_on_cpu=*/true)).step(), Step::kEnd);
  const ModelTable::DeploymentPtr lost = Serving();
  lost->LoseNode(std::string(32, 'a'));
  EXPECT_EQ(ModelRebalance(*lost).step(), Step::kEnd);
}

}  // namespace
}  // namespace strata
