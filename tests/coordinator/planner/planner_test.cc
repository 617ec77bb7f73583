#include "coordinator/planner/planner.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "coordinator/planner/placement_options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/planner_instance.h"

namespace strata::testing {
namespace {

using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kGiB = 1ull << 30;

// 32 layers of 256 MiB: 8 GiB.
LayerCosts EightGiB() { return EqualLayers(32, 256 << 20); }

std::string Ranges(const PlanRequest& request, const Plan& plan) {
  std::string text;
  for (const PlannedStage& stage : plan.stages) {
    absl::StrAppend(&text, text.empty() ? "" : " ", PlaceName(request, stage.device), "=",
                    stage.layers.begin, "-", stage.layers.end - 1);
  }
  return text;
}

std::string RangesOf(const PlanRequest& request) {
  const absl::StatusOr<Plan> plan = MakePlan(request);
  return plan.ok() ? Ranges(request, *plan) : plan.status().ToString();
}

TEST(Planner, UsesOneMachineWhereItIsEnough) {
  const LayerCosts costs = EightGiB();
  const PlanRequest request =
      RequestFor(costs, {{16 * kGiB, 50e9}, {16 * kGiB, 100e9}, {16 * kGiB, 50e9}});
  EXPECT_EQ(RangesOf(request), "n1=0-31");
}

TEST(Planner, GivesTheFasterMachineWhatItHolds) {
  const LayerCosts costs = EightGiB();
  const PlanRequest request = RequestFor(costs, {{16 * kGiB, 20e9}, {5 * kGiB, 200e9}});
  const absl::StatusOr<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->stages, SizeIs(2));
  for (const PlannedStage& stage : plan->stages) {
    EXPECT_EQ(stage.layers.size(), stage.device == 1 ? 19u : 13u);
    EXPECT_LE(stage.memory_bytes(), request.devices[stage.device].memory_free_bytes);
    EXPECT_EQ(stage.weight_bytes, stage.layers.size() * (256ull << 20));
  }
}

TEST(Planner, PutsOnADeviceWithItsOwnMemoryWhatIsNotInTheMachines) {
  LayerCosts costs = EightGiB();
  costs.first_bytes = costs.last_bytes = costs.embedding_bytes = kGiB;
  PlanRequest request = RequestFor(costs, {{16 * kGiB, 50e9}});
  const absl::StatusOr<Plan> shared = MakePlan(request);
  request.devices[0].has_own_memory = true;
  const absl::StatusOr<Plan> own = MakePlan(request);
  ASSERT_TRUE(shared.ok() && own.ok());
  const MachineBytes machine = MachineBytesOf(costs, request.cache, {0, costs.n_layer()});
  EXPECT_EQ(machine.weights, kGiB);
  EXPECT_EQ(own->stages[0].weight_bytes + machine.weights, shared->stages[0].weight_bytes);
  EXPECT_EQ(own->stages[0].compute_bytes + machine.compute, shared->stages[0].compute_bytes);
  // It needs no more than that.
  request.devices[0].memory_free_bytes = own->stages[0].memory_bytes();
  EXPECT_EQ(RangesOf(request), "n0=0-31");
  --request.devices[0].memory_free_bytes;
  EXPECT_FALSE(MakePlan(request).ok());
}

TEST(Planner, ThroughputSpreadsWhatLatencyKeepsTogether) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{16 * kGiB, 50e9}, {16 * kGiB, 50e9}});
  EXPECT_THAT(MakePlan(request)->stages, SizeIs(1));
  request.objective = Objective::kThroughput;
  const absl::StatusOr<Plan> plan = MakePlan(request);
  ASSERT_THAT(plan->stages, SizeIs(2));
  EXPECT_EQ(plan->stages[0].layers.size(), 16);
}

TEST(Planner, DevicesThatShareCoresAreNoFasterTogether) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{16 * kGiB, 50e9}, {16 * kGiB, 50e9}});
  request.objective = Objective::kThroughput;
  for (PlanDevice& device : request.devices) device.cores_pool = 7;
  EXPECT_THAT(MakePlan(request)->stages, SizeIs(1));
}

TEST(Planner, SharedMemoryIsSpentOnce) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{6 * kGiB, 50e9}, {6 * kGiB, 50e9}});
  ASSERT_TRUE(MakePlan(request).ok());
  request.memory_pools = {{"the box", 7 * kGiB}};
  for (PlanDevice& device : request.devices) device.memory_pool = 0;
  EXPECT_THAT(MakePlan(request), StatusIs(absl::StatusCode::kResourceExhausted));
  request.memory_pools[0].free_bytes = 9 * kGiB;
  EXPECT_TRUE(MakePlan(request).ok());
}

TEST(Planner, TheWayBackToTheCoordinatorCounts) {
  const LayerCosts costs = EightGiB();
  // n1 and n2 are equal, but n2 is next to the coordinator.
  PlanRequest request = RequestFor(costs, {{kGiB / 2, 1e9}, {16 * kGiB, 50e9}, {16 * kGiB, 50e9}});
  request.links[0 * 3 + 1].round_trip_s = 20e-3;
  EXPECT_EQ(RangesOf(request), "n2=0-31");
  std::swap(request.links[0 * 3 + 1], request.links[2 * 3 + 0]);
  EXPECT_EQ(RangesOf(request), "n1=0-31");
}

// Placement by bandwidth and latency (users miss it elsewhere: exo #957 #2253, llama.cpp #11435,
// mlx #1804).
TEST(Planner, OfEqualNodesTheOneWithTheBetterWayIsTaken) {
  const LayerCosts costs = EightGiB();
  const PlanLink far = {.round_trip_s = 40e-3, .bytes_per_s = 125e6};
  const PlanLink narrow = {.round_trip_s = 1e-3, .bytes_per_s = 1e6};
  for (const PlanLink& worse : {far, narrow}) {
    for (const size_t with_it : {1, 2}) {
      // Each holds half of the model and more, and the coordinator is one of those it takes.
      PlanRequest request =
          RequestFor(costs, {{5 * kGiB, 60e9}, {5 * kGiB, 50e9}, {5 * kGiB, 50e9}});
      request.links[0 * 3 + with_it] = request.links[with_it * 3 + 0] = worse;
      const absl::StatusOr<Plan> plan = MakePlan(request);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_FALSE(plan->devices[with_it].is_used) << Ranges(request, *plan);
      EXPECT_TRUE(plan->devices[3 - with_it].is_used) << Ranges(request, *plan);
      EXPECT_THAT(plan->devices[with_it].text, HasSubstr("left out: with it a step would take"));
    }
  }
}

TEST(Planner, ThereIsNoHopInsideANode) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{5 * kGiB, 100e9}, {5 * kGiB, 100e9}, {5 * kGiB, 100e9}},
                                   {.round_trip_s = 10e-3, .bytes_per_s = 1e9});
  request.devices[2].node = 1;
  request.devices[2].name = "CUDA0";
  request.coordinator_node = 1;
  const absl::StatusOr<Plan> plan = MakePlan(request);
  ASSERT_THAT(plan->stages, SizeIs(2));
  EXPECT_EQ(request.devices[plan->stages[0].device].node, 1);
  EXPECT_EQ(request.devices[plan->stages[1].device].node, 1);
  EXPECT_DOUBLE_EQ(plan->stages[1].hop_in_s, request.local_hop_s);
}

TEST(Planner, CutsOnlyWhereTheRuleAllows) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{6 * kGiB, 50e9}, {6 * kGiB, 40e9}});
  request.rule.cut_points = {10, 20};
  EXPECT_EQ(RangesOf(request), "n1=0-9 n0=10-31");
  request.rule.forbidden_sizes = {22};
  EXPECT_EQ(RangesOf(request), "n0=0-19 n1=20-31");
  request.rule.cut_points.clear();
  EXPECT_THAT(MakePlan(request),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("may not be cut")));
}

TEST(Planner, HoldsCachesForAllSequences) {
  LayerCosts costs = EightGiB();
  for (LayerCost& layer : costs.layers) layer.kv_bytes_per_position = 4096;
  PlanRequest request = RequestFor(costs, {{9 * kGiB, 50e9}, {9 * kGiB, 50e9}});
  request.cache = {.n_ctx = 2048, .n_seqs = 1, .n_batch = 128};
  EXPECT_THAT(MakePlan(request)->stages, SizeIs(1));
  request.cache.n_seqs = 16;
  const absl::StatusOr<Plan> plan = MakePlan(request);
  ASSERT_THAT(plan->stages, SizeIs(2));
  EXPECT_EQ(plan->stages[0].cache_bytes, plan->stages[0].layers.size() * 2048ull * 16 * 4096);
}

TEST(Planner, KeepsTheReserveFree) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{9 * kGiB, 50e9}, {9 * kGiB, 40e9}});
  EXPECT_EQ(RangesOf(request), "n0=0-31");
  request.reserve = {{"n0", 2 * kGiB}};
  const absl::StatusOr<Plan> plan = MakePlan(request);
  ASSERT_THAT(plan->stages, SizeIs(2));
  for (const PlannedStage& stage : plan->stages) {
    EXPECT_LE(stage.memory_bytes(), (stage.device == 0 ? 7 : 9) * kGiB);
  }
  request.reserve = {{"", 5 * kGiB}};
  EXPECT_THAT(MakePlan(request), StatusIs(absl::StatusCode::kResourceExhausted));
  request.reserve = {{"n7", 2 * kGiB}};
  EXPECT_THAT(MakePlan(request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no node \"n7\"")));
}

TEST(Planner, LeavesOutWhatIsExcluded) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{9 * kGiB, 50e9}, {9 * kGiB, 40e9}});
  request.exclude = {"n0"};
  const absl::StatusOr<Plan> plan = MakePlan(request);
  EXPECT_EQ(Ranges(request, *plan), "n1=0-31");
  EXPECT_FALSE(plan->devices[0].is_used);
  EXPECT_THAT(plan->devices[0].text, HasSubstr("excluded by hand"));
  request.exclude = {"n0/CPU"};
  EXPECT_EQ(RangesOf(request), "n1=0-31");
  request.exclude = {"nobody"};
  EXPECT_THAT(MakePlan(request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"nobody\"")));
}

TEST(Planner, LeavesOutWhatIsKeptOutAndSaysWhy) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{9 * kGiB, 50e9}, {9 * kGiB, 40e9}});
  request.nodes[0].kept_out = "it was lost twice";
  const absl::StatusOr<Plan> plan = MakePlan(request);
  EXPECT_EQ(Ranges(request, *plan), "n1=0-31");
  EXPECT_EQ(plan->devices[0].text, "left out: it was lost twice");
}

TEST(Planner, PutsNoMoreOnANodeThanItsDiskTakes) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{9 * kGiB, 50e9}, {9 * kGiB, 40e9}});
  EXPECT_EQ(RangesOf(request), "n0=0-31");
  // It has the last 16 layers, and room for four more.
  PlanNode& node = request.nodes[0];
  node.disk_free_bytes = kGiB;
  for (uint64_t layer = 0; layer <= 32; ++layer) {
    node.fetch_bytes.push_back(std::min<uint64_t>(layer, 16) * kGiB / 4);
  }
  const absl::StatusOr<Plan> plan = MakePlan(request);
  EXPECT_EQ(Ranges(request, *plan), "n1=0-11 n0=12-31");
  EXPECT_THAT(plan->devices[0].text,
              HasSubstr("not more: the disk of n0 has room for 1.0 GiB of weights"));
  request.assignments = {{"n0", {0, 32}}};
  EXPECT_THAT(MakePlan(request),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("4.0 GiB of weights would be fetched there"),
                             HasSubstr("the disk of n0 has room for 1.0 GiB"))));
  request.assignments.clear();
  request.exclude = {"n1"};
  EXPECT_THAT(MakePlan(request),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("the disk of n0 has room for 1.0 GiB of weights: make room")));
  request.exclude.clear();
  node.disk_free_bytes = 0;
  node.fetch_bytes.assign(33, 0);
  for (uint64_t layer = 0; layer <= 32; ++layer) node.fetch_bytes[layer] = layer * kGiB / 4;
  const absl::StatusOr<Plan> without = MakePlan(request);
  EXPECT_EQ(Ranges(request, *without), "n1=0-31");
  EXPECT_EQ(without->devices[0].text, "left out: the disk of n0 has no room for weights");
  node.fetch_bytes.pop_back();
  EXPECT_THAT(MakePlan(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("n0")));
}

TEST(Planner, SaysHowMuchMemoryIsMissingAndWhere) {
  const LayerCosts costs = EightGiB();
  const PlanRequest request = RequestFor(costs, {{3 * kGiB, 50e9}, {2 * kGiB, 50e9}});
  EXPECT_THAT(MakePlan(request),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("needs 8.1 GiB"), HasSubstr("free are 5.0 GiB"),
                             HasSubstr("layers 18-31 find no room"), HasSubstr("another 3.6 GiB"),
                             HasSubstr("n0 3.0 GiB (layers 0-10)"))));
}

TEST(Planner, SaysWhatDevicesOfferThatHaveNoRoomForALayer) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{kGiB / 8, 50e9}, {kGiB / 4, 50e9}});
  EXPECT_THAT(MakePlan(request),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("free are 384 MiB"),
                             HasSubstr("largest first: n1 256 MiB, n0 128 MiB; no device has"))));
}

// A memory that two devices share may have more than both offer.
TEST(Planner, SaysHowMuchDevicesOfferOfAMemoryTheyShare) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{3 * kGiB, 50e9}, {2 * kGiB, 50e9}});
  request.memory_pools = {{.name = "n0", .free_bytes = 64 * kGiB}};
  for (PlanDevice& device : request.devices) {
    device.node = 0;
    device.memory_pool = 0;
  }
  request.devices[1].name = "Vulkan0";
  EXPECT_THAT(MakePlan(request),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("free are 5.0 GiB")));
}

TEST(Planner, SaysWhenNodesCannotReachEachOther) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{5 * kGiB, 50e9}, {5 * kGiB, 50e9}}, {});
  EXPECT_THAT(MakePlan(request),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("measured link")));
}

TEST(Planner, PredictsLargerBatchesAndPrompts) {
  const LayerCosts costs = EightGiB();
  const PlanRequest request = RequestFor(costs, {{5 * kGiB, 50e9}, {5 * kGiB, 50e9}});
  const absl::StatusOr<Plan> plan = MakePlan(request);
  double stages_s = plan->back_s;
  for (const PlannedStage& stage : plan->stages) stages_s += stage.compute_s + stage.hop_in_s;
  EXPECT_EQ(plan->batch, 1);
  EXPECT_EQ(plan->times[0].batch, 1);
  EXPECT_NEAR(plan->times[0].step_s, stages_s, 1e-12);
  EXPECT_GE(plan->times[1].step_s, plan->times[0].step_s);
  EXPECT_GT(plan->times[2].step_s, plan->times[1].step_s);
  EXPECT_GT(plan->prompt.slowest_s, plan->times[2].slowest_s);
  EXPECT_LT(plan->prompt.slowest_s, plan->prompt.step_s);
}

TEST(Planner, HasALineForEachDevice) {
  const LayerCosts costs = EightGiB();
  const PlanRequest request =
      RequestFor(costs, {{16 * kGiB, 20e9}, {5 * kGiB, 200e9}, {16 * kGiB, 1e9}, {1000, 1e9}});
  const absl::StatusOr<Plan> plan = MakePlan(request);
  ASSERT_THAT(plan->devices, SizeIs(4));
  EXPECT_THAT(plan->devices[0].text, AllOf(HasSubstr("(13 of 32)"), HasSubstr("of 16.0 GiB"),
                                           HasSubstr("with more layers a step would take")));
  EXPECT_THAT(plan->devices[1].text, HasSubstr("not more: the next layers need 256 MiB"));
  EXPECT_THAT(plan->devices[2].text,
              AllOf(HasSubstr("left out: with it a step would take"), HasSubstr("instead of")));
  EXPECT_THAT(plan->devices[3].text, HasSubstr("smallest possible stage needs"));
}

// More nodes must not be slower without an explanation (elsewhere they are: llama.cpp #10047
// #10654, distributed-llama #262 #179, exo #2070).
TEST(Planner, NodesThatWouldSlowItDownAreLeftOutAndSaySo) {
  const LayerCosts costs = EightGiB();
  std::vector<NodeShape> shapes = {{5 * kGiB, 50e9}, {5 * kGiB, 50e9}};
  const double two_s = MakePlan(RequestFor(costs, shapes))->times[0].step_s;
  while (shapes.size() < 7) {
    shapes.push_back({16 * kGiB, 2e9});
    const absl::StatusOr<Plan> plan = MakePlan(RequestFor(costs, shapes));
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_DOUBLE_EQ(plan->times[0].step_s, two_s) << shapes.size();
    for (size_t i = 2; i < shapes.size(); ++i) {
      EXPECT_THAT(plan->devices[i].text,
                  AllOf(HasSubstr("left out: with it a step would take"), HasSubstr("instead of")));
    }
  }
}

TEST(Planner, HintsAreWhatAPlanWithThatThingWouldGain) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{16 * kGiB, 20e9}, {5 * kGiB, 200e9}});
  const absl::StatusOr<Plan> plan = MakePlan(request);
  ASSERT_THAT(plan->hints, Contains(HasSubstr("5.0 GiB more memory on n1: a step would take")));
  request.devices[1].memory_free_bytes *= 2;
  const absl::StatusOr<Plan> better = MakePlan(request);
  const int less =
      static_cast<int>(std::lround(100 * (1 - better->times[0].step_s / plan->times[0].step_s)));
  EXPECT_THAT(plan->hints, Contains(HasSubstr(absl::StrCat("(", less, " % less)"))));
  EXPECT_THAT(better->hints, IsEmpty());
}

TEST(Planner, HintsAtSlowLinks) {
  const LayerCosts costs = EqualLayers(32, 16 << 20);
  PlanRequest request = RequestFor(costs, {{400 << 20, 50e9}, {400 << 20, 50e9}, {10 << 20, 1e9}});
  for (const size_t slow : {0 * 3 + 1, 1 * 3 + 0}) request.links[slow].round_trip_s = 50e-3;
  EXPECT_THAT(MakePlan(request)->hints,
              Contains(AllOf(HasSubstr("links of n1"), HasSubstr("less)"))));
}

// Manual placement (users miss it elsewhere: exo #957 #2253, llama.cpp #11435, mlx #1804).
TEST(Planner, TakesAnAssignmentAsItIs) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{16 * kGiB, 20e9}, {5 * kGiB, 200e9}});
  request.assignments = *ParseAssign("n1=20-31,n0=0-19");
  const absl::StatusOr<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->is_by_hand);
  EXPECT_EQ(Ranges(request, *plan), "n0=0-19 n1=20-31");
  request.assignments.clear();
  EXPECT_LT(MakePlan(request)->times[0].step_s, plan->times[0].step_s);
}

TEST(Planner, AnAssignmentMayNameADevice) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{16 * kGiB, 20e9}, {16 * kGiB, 200e9}});
  request.devices[1].node = 0;
  request.devices[1].name = "CUDA0";
  request.assignments = *ParseAssign("n0=0-31");
  EXPECT_EQ(RangesOf(request), "n0/CUDA0=0-31");
  request.assignments = *ParseAssign("n0/CPU=0-3,n0=4-31");
  EXPECT_EQ(RangesOf(request), "n0/CPU=0-3 n0/CUDA0=4-31");
}

TEST(Planner, RefusesWrongAssignmentsInWords) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{5 * kGiB, 20e9}, {5 * kGiB, 200e9}});
  request.rule.cut_points = {8, 16, 24};
  const struct {
    const char* assign;
    absl::StatusCode code;
    const char* says;
  } cases[] = {
      {"n0=0-15,n9=16-31", absl::StatusCode::kInvalidArgument,
       "no node or device \"n9\"; there are n0, n1"},
      {"n0=0-15,n1=17-31", absl::StatusCode::kInvalidArgument, "layer 16 is assigned to no device"},
      {"n0=8-15,n1=16-31", absl::StatusCode::kInvalidArgument,
       "layers 0-7 are assigned to no device"},
      {"n0=0-15", absl::StatusCode::kInvalidArgument, "layers 16-31 are assigned to no device"},
      {"n0=0-15,n1=8-31", absl::StatusCode::kInvalidArgument,
       "layers 8-15 are assigned to both n0 and n1"},
      {"n0=0-15,n1=16-32", absl::StatusCode::kInvalidArgument, "32 layers, 0 to 31"},
      {"n0=0-7,n1=8-15,n0=16-31", absl::StatusCode::kInvalidArgument,
       "n0 is assigned layers twice"},
      {"n0=0-9,n1=10-31", absl::StatusCode::kFailedPrecondition, "may be cut at 8, 16, 24"},
      {"n0=0-7,n1=8-31", absl::StatusCode::kResourceExhausted,
       "they need 6.1 GiB with cache and buffers, it has 5.0 GiB"},
  };
  for (const auto& each : cases) {
    request.assignments = *ParseAssign(each.assign);
    EXPECT_THAT(MakePlan(request), StatusIs(each.code, HasSubstr(each.says))) << each.assign;
  }
  request.assignments = *ParseAssign("n0=0-15,n1=16-31");
  EXPECT_TRUE(MakePlan(request).ok());
  request.exclude = {"n1"};
  EXPECT_THAT(MakePlan(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("both assigned layers and excluded")));
}

TEST(Planner, RefusesARequestThatContradictsItself) {
  const LayerCosts costs = EightGiB();
  PlanRequest request = RequestFor(costs, {{9 * kGiB, 20e9}});
  request.links.clear();
  EXPECT_THAT(MakePlan(request), StatusIs(absl::StatusCode::kInvalidArgument));
  request = RequestFor(costs, {{9 * kGiB, 20e9}});
  request.devices[0].memory_pool = 3;
  EXPECT_THAT(MakePlan(request), StatusIs(absl::StatusCode::kInvalidArgument));
  request = RequestFor(costs, {{9 * kGiB, 20e9}});
  request.cache.n_seqs = 0;
  EXPECT_THAT(MakePlan(request), StatusIs(absl::StatusCode::kInvalidArgument));
  request = RequestFor(costs, {{9 * kGiB, 20e9}});
  request.rule.cut_points = {40};
  EXPECT_THAT(MakePlan(request), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Planner, SearchesWhereTheyAreTooManyForAllOrders) {
  const LayerCosts costs = EightGiB();
  std::vector<NodeShape> shapes(40, {600 << 20, 20e9});
  shapes[17] = {5 * kGiB, 200e9};
  const PlanRequest request = RequestFor(costs, shapes);
  const absl::StatusOr<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // 19 layers on the large one, two on each of the others.
  EXPECT_THAT(plan->stages, SizeIs(8));
  EXPECT_TRUE(plan->devices[17].is_used);
}

TEST(Planner, ThroughputTakesAsManyDevicesAsMakeTheSlowestStageShorter) {
  const LayerCosts costs = EqualLayers(80, 256 << 20);
  PlanRequest request = RequestFor(costs, std::vector<NodeShape>(40, {32 * kGiB, 20e9}));
  request.objective = Objective::kThroughput;
  request.with_hints = false;
  const absl::StatusOr<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->stages, SizeIs(40));
}

}  // namespace
}  // namespace strata::testing
