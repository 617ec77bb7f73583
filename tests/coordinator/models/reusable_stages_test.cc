#include "coordinator/models/reusable_stages.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/planner_instance.h"
#include "tests/shard/weights/weights_fixture.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

using ::strata::testing::Opened;
using ::strata::testing::RequestFor;
using ::strata::testing::TinyLlama;
using ::strata::testing::Write;
using ::testing::SizeIs;

constexpr uint64_t kGiB = 1ull << 30;
constexpr uint32_t kLayers = 8;
using Reuse = PlanningOptions::Reuse;

const std::string& CoordinatorId() {
  static const auto* const id = new std::string(32, 'c');
  return *id;
}

// Two nodes of `free_bytes` each, and a model of 2 GiB.
class ReusableStages : public ::testing::Test {
 protected:
  explicit ReusableStages(uint64_t free_bytes = 8 * kGiB) {
    planned_.model = Opened(Write(TinyLlama({.n_layer = kLayers})));
    planned_.costs = testing::EqualLayers(kLayers, kGiB / 4);
    planned_.inputs.request = RequestFor(planned_.costs, {{free_bytes, 50e9}, {free_bytes, 50e9}});
    planned_.inputs.places = {0, 1};
    planned_.report.nodes.resize(2);
  }

  // A stage as a node reports it.
  wire::StageStatus* Holds(size_t node, LayerRange layers) {
    wire::StageStatus* const stage = planned_.report.nodes[node].info.add_stages();
    stage->set_model_id(planned_.model->id());
    stage->set_device("CPU");
    stage->set_state(wire::StageStatus::SERVING);
    stage->mutable_epoch()->set_counter(3);
    stage->mutable_epoch()->set_coordinator_id(CoordinatorId());
    stage->set_stage(static_cast<uint32_t>(node));
    stage->mutable_layers()->set_begin(layers.begin);
    stage->mutable_layers()->set_end(layers.end);
    return stage;
  }

  std::string PlanAll(Reuse reuse) {
    const std::vector<LoadedStage> loaded = TakeLoaded(placement_, &planned_);
    auto plan = PlanWithLoaded(planned_.inputs.request, loaded, reuse);
    if (!plan.ok()) return plan.status().ToString();
    planned_.plan = *std::move(plan);
    MatchLoaded(loaded, reuse, &planned_);
    std::string plan_text;
    for (size_t i = 0; i < planned_.plan.stages.size(); ++i) {
      const PlannedStage& stage = planned_.plan.stages[i];
      absl::StrAppend(&plan_text, i == 0 ? "" : " ", stage.device, "=", stage.layers.begin, "-",
                      stage.layers.end - 1,
                      !planned_.kept.empty() && planned_.kept[i] ? " kept" : "");
    }
    return plan_text;
  }

  // The stage was loaded with `placement`.
  void SetOrigin(wire::StageStatus* stage, const wire::PlacementOptions& placement) {
    wire::LoadModelRequest origin;
    *origin.mutable_placement() = placement;
    stage->set_origin(origin.SerializeAsString());
  }

  wire::PlacementOptions placement_;
  PlannedModel planned_;
};

TEST_F(ReusableStages, OfOtherCachesDoNotStay) {
  SetOrigin(Holds(0, {0, 3}), placement_);
  wire::PlacementOptions other;
  other.set_n_seqs(2);
  SetOrigin(Holds(1, {3, 6}), other);
  EXPECT_EQ(PlanAll(Reuse::kAround), "0=0-2 kept 0=3-7");
  EXPECT_THAT(planned_.stale_stages, SizeIs(1));
  placement_.set_n_seqs(1);  // what they were without it
  EXPECT_EQ(PlanAll(Reuse::kAround), "0=0-2 kept 0=3-7");
  placement_.mutable_cache()->set_type_k("q8_0");
  EXPECT_EQ(PlanAll(Reuse::kAround), "0=0-7");
  EXPECT_THAT(planned_.stale_stages, SizeIs(2));
}

TEST_F(ReusableStages, AreNotPlannedAroundWhereExpertsAreForTheCpus) {
  for (LayerCost& layer : planned_.costs.layers) layer.n_expert = 8;
  planned_.inputs.request.cpu_moe = CpuMoe::kAll;
  Holds(0, {0, 3});
  Holds(1, {3, 6});
  EXPECT_EQ(PlanAll(Reuse::kAround), "0=0-7");
  EXPECT_THAT(planned_.stale_stages, SizeIs(2));
}

TEST_F(ReusableStages, StayWhereTheyAre) {
  Holds(0, {0, 3});
  Holds(1, {3, 6});
  EXPECT_EQ(PlanAll(Reuse::kAround), "0=0-2 kept 1=3-5 kept 1=6-7");
  EXPECT_THAT(planned_.stale_stages, SizeIs(0));
  EXPECT_FALSE(planned_.IsAllKept());
  EXPECT_EQ(planned_.kept[1]->epoch().counter(), 3u);
  EXPECT_EQ(planned_.kept[1]->stage(), 1u);
  std::vector<wire::StageInfo> stages(3);
  stages[0].set_kept(true);
  stages[1].set_kept(true);
  EXPECT_EQ(KeptText(stages), "2 of 3 stages kept");
}

TEST_F(ReusableStages, CountTheirMemoryAsFree) {
  Holds(0, {0, 4});
  const uint64_t before = planned_.inputs.request.devices[0].memory_free_bytes;
  const std::vector<LoadedStage> loaded = TakeLoaded(placement_, &planned_);
  ASSERT_THAT(loaded, SizeIs(1));
  EXPECT_EQ(planned_.inputs.request.devices[0].memory_free_bytes - before,
            StageBytes(planned_.costs, planned_.inputs.request.cache, {0, 4},
                       /*has_own_memory=*/false));
}

TEST_F(ReusableStages, OfAPlanMadeFromNothingOnlyTheSameStay) {
  Holds(0, {0, 3});
  Holds(1, {3, 8});
  EXPECT_EQ(PlanAll(Reuse::kMatched), "0=0-7");
  EXPECT_THAT(planned_.stale_stages, SizeIs(2));
}

TEST_F(ReusableStages, AreAllLeftOverWhereNothingIsToStay) {
  Holds(0, {0, 8});
  EXPECT_EQ(PlanAll(Reuse::kUnloaded), "0=0-7");
  EXPECT_THAT(planned_.stale_stages, SizeIs(1));
}

TEST_F(ReusableStages, KeepTheirPlaceByHand) {
  Holds(0, {0, 3});
  Holds(1, {3, 6});
  planned_.inputs.request.assignments = {{"n0", {0, 3}}, {"n1", {3, 8}}};
  EXPECT_EQ(PlanAll(Reuse::kAround), "0=0-2 kept 1=3-7");
  ASSERT_THAT(planned_.stale_stages, SizeIs(1));
  EXPECT_EQ(planned_.stale_stages[0].node, 1u);
}

TEST_F(ReusableStages, OfOtherModelsDevicesOrProgramsAreLeftAlone) {
  Holds(0, {0, 8})->set_model_id("another");
  Holds(0, {0, 8})->set_state(wire::StageStatus::LOADING);
  Holds(0, {0, 8})->mutable_epoch()->set_coordinator_id("a program");
  Holds(0, {0, 8})->set_n_cpu_moe(2);
  Holds(0, {0, 8})->set_device("CUDA0");
  Holds(0, {5, 5});
  Holds(0, {0, 9});
  EXPECT_THAT(TakeLoaded(placement_, &planned_), SizeIs(0));
}

class LoadedStagesWithLittleRoom : public ReusableStages {
 protected:
  LoadedStagesWithLittleRoom() : ReusableStages(kGiB * 6 / 5) {}
};

// Around the loaded stages the rest fits nowhere; in a new plan it does.
TEST_F(LoadedStagesWithLittleRoom, GiveWayWhereTheRestFindsNoRoomAroundThem) {
  Holds(0, {2, 5});
  planned_.inputs.request.devices[0].memory_free_bytes = kGiB * 26 / 100;
  EXPECT_EQ(PlanAll(Reuse::kAround), "0=0-3 1=4-7");
  EXPECT_THAT(planned_.stale_stages, SizeIs(1));
}

class KeptAfterLosses : public ReusableStages {
 protected:
  KeptAfterLosses() {
    Holds(0, {0, 3});
    PlanAll(Reuse::kAround);
  }
  Reuse After(uint32_t in_a_row, const absl::Status& why, bool all_serve = true) {
    return KeptAfter(in_a_row, planned_, why, [&] {
      ++queries_;
      return all_serve;
    });
  }
  int queries_ = 0;
};

TEST_F(KeptAfterLosses, TheFirstTwoTimesAllStagesAre) {
  for (const uint32_t in_a_row : {0u, 1u}) {
    EXPECT_EQ(After(in_a_row, absl::UnavailableError("a link broke")), Reuse::kAround);
  }
  EXPECT_EQ(queries_, 0);
}

TEST_F(KeptAfterLosses, ThenNoStageIsThatMayBeTheCause) {
  const absl::Status broke = absl::UnavailableError("a link broke");
  EXPECT_EQ(After(2, broke), Reuse::kUnloaded);
  EXPECT_EQ(After(3, broke), Reuse::kUnloaded);
  EXPECT_EQ(After(2, broke, /*all_serve=*/false), Reuse::kAround);
  // A load failed: of the stage that was kept, or of the other.
  ASSERT_TRUE(planned_.kept[0] && !planned_.kept[1]);
  EXPECT_EQ(After(2, WithStage(broke, 0)), Reuse::kUnloaded);
  EXPECT_EQ(After(2, WithStage(broke, 1)), Reuse::kAround);
  EXPECT_EQ(After(2, WithStage(broke, 2)), Reuse::kAround);
}

TEST_F(KeptAfterLosses, WantOfRoomKeepsAllStages) {
  const absl::Status full = absl::ResourceExhaustedError("full");
  EXPECT_EQ(After(3, WithStage(WithDiskShortage(full, {}), 0)), Reuse::kAround);
  EXPECT_EQ(After(3, WithStage(WithShortage(full, {}), 0)), Reuse::kAround);
  EXPECT_EQ(queries_, 0);
}

TEST_F(KeptAfterLosses, TheFifthTimeNoStageIs) {
  EXPECT_EQ(After(4, absl::UnavailableError("a link broke"), /*all_serve=*/false),
            Reuse::kUnloaded);
}

// The limit of a device with several stages is for all of them.
TEST_F(KeptAfterLosses, ALimitIsForAllStagesOfTheDevice) {
  planned_.plan.stages[0].device = planned_.plan.stages[1].device = 0;
  planned_.plan.stages[0].weight_bytes = 700;
  planned_.plan.stages[1].weight_bytes = 500;
  for (PlannedStage& stage : planned_.plan.stages) stage.cache_bytes = stage.compute_bytes = 0;
  const absl::Status full = absl::ResourceExhaustedError("full");
  const auto memory = CapacityLimitOf(
      planned_, WithStage(WithShortage(full, {.needed_bytes = 510, .free_bytes = 400}), 1));
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->device, "CPU");
  EXPECT_EQ(memory->bytes, 1090u);
}

TEST(IsCapacityError, AFileThatIsGoneMayComeBackAndWhatBreaksAgainAndAgainMayNot) {
  EXPECT_TRUE(IsCapacityError(absl::NotFoundError("no such file")));
  EXPECT_TRUE(IsCapacityError(absl::FailedPreconditionError("it is another model now")));
  EXPECT_TRUE(IsCapacityError(absl::ResourceExhaustedError("no room")));
  EXPECT_FALSE(IsCapacityError(absl::AbortedError("its stages were lost 6 times")));
  EXPECT_FALSE(IsCapacityError(absl::OkStatus()));
}

TEST_F(KeptAfterLosses, AFullDiskIsReportedOnceAndThenTakesNothing) {
  const absl::Status full = WithStage(
      WithDiskShortage(absl::ResourceExhaustedError("full"), {.needed_bytes = 9, .free_bytes = 7}),
      1);
  const auto disk = CapacityLimitOf(planned_, full);
  ASSERT_TRUE(disk.has_value());
  EXPECT_EQ(disk->device, "");
  EXPECT_EQ(disk->bytes, 7u);
  const size_t node = planned_.inputs.request.devices[planned_.plan.stages[1].device].node;
  planned_.inputs.request.nodes[node].fetch_bytes.assign(kLayers + 1, 0);
  EXPECT_EQ(CapacityLimitOf(planned_, full)->bytes, 0u);
  EXPECT_FALSE(CapacityLimitOf(planned_, WithStage(absl::ResourceExhaustedError("busy"), 1)));
}

}  // namespace
}  // namespace strata
