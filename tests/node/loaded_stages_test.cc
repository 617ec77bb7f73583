#include "node/loaded_stages.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner_instance.h"
#include "tests/node/weights_fixture.h"

namespace strata {
namespace {

using ::strata::testing::Opened;
using ::strata::testing::RequestFor;
using ::strata::testing::TinyLlama;
using ::strata::testing::Write;
using ::testing::SizeIs;

constexpr uint64_t kGiB = 1ull << 30;
constexpr uint32_t kLayers = 8;
using Loaded = PlanningOptions::Loaded;

const std::string& CoordinatorId() {
  static const auto* const id = new std::string(32, 'c');
  return *id;
}

// Two nodes of `free_bytes` each, and a model of 2 GiB.
class LoadedStages : public ::testing::Test {
 protected:
  explicit LoadedStages(uint64_t free_bytes = 8 * kGiB) {
    planned_.model = Opened(Write(TinyLlama({.n_layer = kLayers})));
    planned_.costs = testing::EqualLayers(kLayers, kGiB / 4);
    planned_.inputs.request = RequestFor(planned_.costs, {{free_bytes, 50e9}, {free_bytes, 50e9}});
    planned_.inputs.places = {0, 1};
    planned_.report.nodes.resize(2);
  }

  // As a node tells it.
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

  std::string PlanAll(Loaded what) {
    const std::vector<LoadedStage> loaded = TakeLoaded(&planned_);
    auto plan = PlanWithLoaded(planned_.inputs.request, loaded, what);
    if (!plan.ok()) return plan.status().ToString();
    planned_.plan = *std::move(plan);
    MatchLoaded(loaded, what, &planned_);
    std::string text;
    for (size_t i = 0; i < planned_.plan.stages.size(); ++i) {
      const PlannedStage& stage = planned_.plan.stages[i];
      absl::StrAppend(&text, i == 0 ? "" : " ", stage.device, "=", stage.layers.begin, "-",
                      stage.layers.end - 1,
                      !planned_.kept.empty() && planned_.kept[i] ? " kept" : "");
    }
    return text;
  }

  PlannedModel planned_;
};

TEST_F(LoadedStages, StayWhereTheyAre) {
  Holds(0, {0, 3});
  Holds(1, {3, 6});
  EXPECT_EQ(PlanAll(Loaded::kAround), "0=0-2 kept 1=3-5 kept 1=6-7");
  EXPECT_THAT(planned_.leftovers, SizeIs(0));
  EXPECT_FALSE(planned_.IsAllKept());
  EXPECT_EQ(planned_.kept[1]->epoch().counter(), 3u);
  EXPECT_EQ(planned_.kept[1]->stage(), 1u);
  EXPECT_EQ(KeptText(planned_), "2 of 3 stages kept");
}

TEST_F(LoadedStages, CountTheirMemoryAsFree) {
  Holds(0, {0, 4});
  const uint64_t before = planned_.inputs.request.devices[0].memory_free_bytes;
  const std::vector<LoadedStage> loaded = TakeLoaded(&planned_);
  ASSERT_THAT(loaded, SizeIs(1));
  EXPECT_EQ(planned_.inputs.request.devices[0].memory_free_bytes - before,
            StageBytes(planned_.costs, planned_.inputs.request.cache, {0, 4}));
}

TEST_F(LoadedStages, OfAPlanMadeFromNothingOnlyTheSameStay) {
  Holds(0, {0, 3});
  Holds(1, {3, 8});
  EXPECT_EQ(PlanAll(Loaded::kMatched), "0=0-7");
  EXPECT_THAT(planned_.leftovers, SizeIs(2));
}

TEST_F(LoadedStages, AreAllLeftOverWhereNothingIsToStay) {
  Holds(0, {0, 8});
  EXPECT_EQ(PlanAll(Loaded::kUnloaded), "0=0-7");
  EXPECT_THAT(planned_.leftovers, SizeIs(1));
}

TEST_F(LoadedStages, KeepTheirPlaceByHand) {
  Holds(0, {0, 3});
  Holds(1, {3, 6});
  planned_.inputs.request.assignments = {{"n0", {0, 3}}, {"n1", {3, 8}}};
  EXPECT_EQ(PlanAll(Loaded::kAround), "0=0-2 kept 1=3-7");
  ASSERT_THAT(planned_.leftovers, SizeIs(1));
  EXPECT_EQ(planned_.leftovers[0].node, 1u);
}

TEST_F(LoadedStages, ThatAreNobodysOrSomebodyElsesAreLeftAlone) {
  Holds(0, {0, 8})->set_model_id("another");
  Holds(0, {0, 8})->set_state(wire::StageStatus::LOADING);
  Holds(0, {0, 8})->mutable_epoch()->set_coordinator_id("a program");
  Holds(0, {0, 8})->set_n_cpu_moe(2);
  Holds(0, {0, 8})->set_device("CUDA0");
  Holds(0, {5, 5});
  Holds(0, {0, 9});
  EXPECT_THAT(TakeLoaded(&planned_), SizeIs(0));
}

class LoadedStagesWithLittleRoom : public LoadedStages {
 protected:
  LoadedStagesWithLittleRoom() : LoadedStages(kGiB * 6 / 5) {}
};

// Around what is there the rest fits nowhere; made from nothing it does.
TEST_F(LoadedStagesWithLittleRoom, GiveWayWhereTheRestFindsNoRoomAroundThem) {
  Holds(0, {2, 5});
  planned_.inputs.request.devices[0].memory_free_bytes = kGiB * 26 / 100;
  EXPECT_EQ(PlanAll(Loaded::kAround), "0=0-3 1=4-7");
  EXPECT_THAT(planned_.leftovers, SizeIs(1));
}

}  // namespace
}  // namespace strata
