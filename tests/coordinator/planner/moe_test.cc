// Plans of models with experts on nodes that have a GPU beside their CPU.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/planner_instance.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using testing::kQ8;
using testing::RequestFor;
using ::testing::SizeIs;
using testing::SpeedOf;

constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

// 32 layers of 32 MiB that every token passes and 64 experts of 4 MiB, of which it passes 4.
LayerCosts Sparse() {
  LayerCosts costs = testing::EqualLayers(32, 32 * kMiB);
  for (LayerCost& layer : costs.layers) {
    layer.experts = {{kQ8, 256 * kMiB}};
    layer.n_expert = 64;
    layer.n_expert_used = 4;
    layer.weight_bytes += 256 * kMiB;
    layer.kv_bytes_per_position = 8192;
  }
  return costs;
}

struct Shape {
  uint64_t cpu_bytes, gpu_bytes;
};

// Nodes with a CPU of 40 GB/s and a GPU of 800 GB/s, as far as they have memory.
PlanRequest Machines(const LayerCosts& costs, const std::vector<Shape>& shapes) {
  PlanRequest request =
      RequestFor(costs, std::vector<testing::NodeShape>(shapes.size(), {0, 40e9}));
  request.devices.clear();
  for (size_t node = 0; node < shapes.size(); ++node) {
    PlanDevice device;
    device.node = node;
    if (shapes[node].cpu_bytes > 0) {
      device.name = "CPU";
      device.is_cpu = true;
      device.memory_free_bytes = shapes[node].cpu_bytes;
      device.speed = SpeedOf(40e9);
      device.memory_pool = device.bandwidth_pool = static_cast<int>(request.memory_pools.size());
      device.cores_pool = static_cast<int>(request.core_pools.size());
      request.memory_pools.push_back({"", shapes[node].cpu_bytes});
      request.core_pools.emplace_back("");
      request.devices.push_back(device);
    }
    if (shapes[node].gpu_bytes > 0) {
      device = {.node = node, .name = "CUDA0"};
      device.memory_free_bytes = shapes[node].gpu_bytes;
      device.speed = SpeedOf(800e9);
      request.devices.push_back(device);
    }
  }
  return request;
}

// Adds a GPU with the same memory to the first node, which has a CPU.
void AddIntegratedGpu(PlanRequest* request) {
  PlanDevice integrated = request->devices[0];
  integrated.name = "Vulkan0";
  integrated.is_cpu = false;
  integrated.cores_pool = kOwnPool;
  integrated.speed = SpeedOf(60e9);
  request->devices.push_back(integrated);
}

const PlannedStage* StageOn(const Plan& plan, const PlanRequest& request, const std::string& name) {
  const auto found = std::find_if(
      plan.stages.begin(), plan.stages.end(),
      [&](const PlannedStage& stage) { return PlaceName(request, stage.device) == name; });
  return found == plan.stages.end() ? nullptr : &*found;
}

TEST(PlannerMoe, AGpuThatHoldsAllKeepsTheExperts) {
  const LayerCosts costs = Sparse();
  const PlanRequest request = Machines(costs, {{32 * kGiB, 24 * kGiB}});
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->stages, SizeIs(1));
  EXPECT_EQ(PlaceName(request, plan->stages[0].device), "n0/CUDA0");
  EXPECT_EQ(plan->stages[0].n_cpu_moe, 0u);
  EXPECT_EQ(plan->stages[0].host_bytes, 0u);
}

TEST(PlannerMoe, ASmallGpuTakesTheRestOfAllLayersAndTheExpertsThatFit) {
  const LayerCosts costs = Sparse();
  PlanRequest request = Machines(costs, {{32 * kGiB, 4 * kGiB}});
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->stages, SizeIs(1));
  const PlannedStage& stage = plan->stages[0];
  EXPECT_EQ(PlaceName(request, stage.device), "n0/CUDA0");
  EXPECT_EQ(stage.layers.size(), 32u);
  EXPECT_GT(stage.n_cpu_moe, 0u);
  EXPECT_LT(stage.n_cpu_moe, 32u);
  EXPECT_EQ(stage.host_bytes, stage.n_cpu_moe * 256 * kMiB);
  EXPECT_LE(stage.memory_bytes(), 4 * kGiB);
  EXPECT_GT(stage.memory_bytes() + 256 * kMiB, 4 * kGiB) << "another layer's experts would fit";

  request.cpu_moe = CpuMoe::kNone;
  const auto without = MakePlan(request);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_THAT(without->stages, SizeIs(2));
  EXPECT_LT(plan->times[0].step_s, without->times[0].step_s);
  EXPECT_LT(plan->prompt.slowest_s, without->prompt.slowest_s);

  ASSERT_THAT(plan->devices, SizeIs(2));
  EXPECT_THAT(plan->devices[0].text, HasSubstr("computes experts"));
  EXPECT_THAT(plan->devices[1].text, HasSubstr("the experts of layers 0-"));
}

// The predicted time is the sum of its parts.
TEST(PlannerMoe, TheTimeIsThatOfBothDevicesAndTheTransferBetween) {
  const LayerCosts costs = Sparse();
  PlanRequest request = Machines(costs, {{32 * kGiB, 4 * kGiB}});
  request.positions = 1;
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const PlannedStage& stage = plan->stages[0];
  const double experts = 4 * 4.0 * kMiB, kv = 8192;
  const StepShape step = DecodeStep(1, 1);
  double seconds = 80e-6;
  for (uint32_t i = 0; i < 32; ++i) {
    seconds += (32.0 * kMiB + kv) / 800e9;
    seconds +=
        i < stage.n_cpu_moe ? experts / 40e9 + HandOverSeconds(costs, step) : experts / 800e9;
  }
  const double head = PredictHead(costs, request.devices[1].speed, step).seconds;
  EXPECT_NEAR(stage.compute_s, seconds + head, 1e-3 * seconds);
  EXPECT_NEAR(plan->times[0].step_s, stage.compute_s + stage.hop_in_s + plan->back_s, 1e-9);
}

TEST(PlannerMoe, TheHostsMemoryBoundsTheExperts) {
  const LayerCosts costs = Sparse();
  // 9 GiB of model, of which 1 is not experts: 4 and 5 together cannot hold it.
  for (const uint64_t cpu : {3 * kGiB, 4 * kGiB}) {
    EXPECT_THAT(MakePlan(Machines(costs, {{cpu, 4 * kGiB}})),
                StatusIs(absl::StatusCode::kResourceExhausted));
  }
  PlanRequest request = Machines(costs, {{8 * kGiB, 4 * kGiB}});
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const PlannedStage& stage : plan->stages) EXPECT_LE(stage.host_bytes, 8 * kGiB);
  request.reserve = {{"n0", 4 * kGiB}};
  const auto reserved = MakePlan(request);
  if (reserved.ok()) {
    for (const PlannedStage& stage : reserved->stages) EXPECT_LE(stage.host_bytes, 4 * kGiB);
  }
}

// An integrated GPU's memory is the machine's, which the experts of the other one are to have.
TEST(PlannerMoe, TheMemoryOfExpertsIsPlannedOnce) {
  const LayerCosts costs = Sparse();
  for (const CpuMoe cpu_moe : {CpuMoe::kAuto, CpuMoe::kAll}) {
    for (const uint64_t cpu : {5 * kGiB, 7 * kGiB, 8 * kGiB, 12 * kGiB}) {
      PlanRequest request = Machines(costs, {{cpu, 1 * kGiB}});
      AddIntegratedGpu(&request);
      request.cpu_moe = cpu_moe;
      const auto plan = MakePlan(request);
      if (!plan.ok()) {
        EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted) << plan.status();
        continue;
      }
      uint64_t of_machine = 0;
      for (const PlannedStage& stage : plan->stages) {
        of_machine += stage.host_bytes;
        if (request.devices[stage.device].memory_pool != kOwnPool) {
          of_machine += stage.memory_bytes();
        }
      }
      EXPECT_LE(of_machine, cpu);
    }
  }
}

// Where the card that would have experts there is to hold nothing, the other one may.
TEST(PlannerMoe, AnExcludedCardLeavesTheMachinesMemoryToOthers) {
  const LayerCosts costs = Sparse();
  PlanRequest request = Machines(costs, {{16 * kGiB, 1 * kGiB}});
  AddIntegratedGpu(&request);
  request.cpu_moe = CpuMoe::kAll;
  request.exclude = {"n0/CUDA0"};
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_NE(StageOn(*plan, request, "n0/Vulkan0"), nullptr);
}

TEST(PlannerMoe, OnlyCardsThatMayGetAStageShareTheHostsMemory) {
  const LayerCosts costs = Sparse();  // 8 GiB of experts
  PlanRequest integrated = Machines(costs, {{9 * kGiB, 3 * kGiB}});
  AddIntegratedGpu(&integrated);
  PlanRequest excluded = Machines(costs, {{9 * kGiB, 3 * kGiB}});
  excluded.devices.push_back(excluded.devices[1]);
  excluded.devices.back().name = "CUDA1";
  PlanRequest elsewhere = excluded;
  excluded.exclude = {"n0/CUDA1"};
  elsewhere.assignments = {{"n0/CUDA0", {0, 32}}};
  for (PlanRequest* request : {&integrated, &excluded, &elsewhere}) {
    request->cpu_moe = CpuMoe::kAll;
    const auto plan = MakePlan(*request);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_THAT(plan->stages, SizeIs(1));
    EXPECT_EQ(PlaceName(*request, plan->stages[0].device), "n0/CUDA0");
    EXPECT_EQ(plan->stages[0].host_bytes, 8 * kGiB);
  }
}

TEST(PlannerMoe, ExpertsLeaveRoomForWhatACardKeepsInTheMachinesMemory) {
  LayerCosts costs = Sparse();  // 8 GiB of experts
  costs.first_bytes = costs.embedding_bytes = 512 * kMiB;
  PlanRequest request = Machines(costs, {{9 * kGiB, 3 * kGiB}});
  request.cpu_moe = CpuMoe::kAll;
  request.devices[1].has_own_memory = true;
  EXPECT_TRUE(MakePlan(request).ok());
  request.devices[0].memory_free_bytes = request.memory_pools[0].free_bytes = 8 * kGiB + 256 * kMiB;
  EXPECT_EQ(MakePlan(request).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(PlannerMoe, AnExcludedCpuComputesNoExperts) {
  const LayerCosts costs = Sparse();
  PlanRequest request = Machines(costs, {{32 * kGiB, 4 * kGiB}});
  request.exclude = {"n0/CPU"};
  for (const CpuMoe cpu_moe : {CpuMoe::kAuto, CpuMoe::kAll}) {
    request.cpu_moe = cpu_moe;
    EXPECT_EQ(MakePlan(request).status().code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST(PlannerMoe, ACpuBesideAnExcludedCardHoldsStages) {
  const LayerCosts costs = Sparse();
  PlanRequest request = Machines(costs, {{16 * kGiB, 1 * kGiB}});
  request.cpu_moe = CpuMoe::kAll;
  request.exclude = {"n0/CUDA0"};
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_NE(StageOn(*plan, request, "n0/CPU"), nullptr);
}

TEST(PlannerMoe, EachNodeForItself) {
  const LayerCosts costs = Sparse();
  // The first one's GPU is too small for half of it, the second has no CPU to speak of.
  const PlanRequest request = Machines(costs, {{32 * kGiB, 2 * kGiB}, {0, 6 * kGiB}});
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const PlannedStage* const second = StageOn(*plan, request, "n1");
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->n_cpu_moe, 0u);
  const PlannedStage* const first = StageOn(*plan, request, "n0/CUDA0");
  ASSERT_NE(first, nullptr);
  EXPECT_GT(first->n_cpu_moe, 0u);
  EXPECT_EQ(StageOn(*plan, request, "n0/CPU"), nullptr);
}

TEST(PlannerMoe, ThroughputPlansKeepWithinMemoryToo) {
  const LayerCosts costs = Sparse();
  PlanRequest request =
      Machines(costs, {{32 * kGiB, 3 * kGiB}, {16 * kGiB, 3 * kGiB}, {16 * kGiB, 0}});
  request.objective = Objective::kThroughput;
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const PlannedStage& stage : plan->stages) {
    const PlanDevice& device = request.devices[stage.device];
    EXPECT_LE(stage.memory_bytes(), device.memory_free_bytes);
    EXPECT_LE(stage.host_bytes, 32 * kGiB);
    EXPECT_LE(stage.n_cpu_moe, stage.layers.size());
    EXPECT_TRUE(!device.is_cpu || stage.n_cpu_moe == 0);
  }
  request.cpu_moe = CpuMoe::kNone;
  const auto without = MakePlan(request);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_LE(plan->times[0].slowest_s, without->times[0].slowest_s * 1.0001);
}

TEST(PlannerMoe, ByHand) {
  const LayerCosts costs = Sparse();
  PlanRequest request = Machines(costs, {{32 * kGiB, 24 * kGiB}});
  request.cpu_moe = CpuMoe::kAll;
  const auto all = MakePlan(request);
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_THAT(all->stages, SizeIs(1));
  EXPECT_EQ(all->stages[0].n_cpu_moe, 32u);

  // Layers by hand that fit only without their experts.
  request = Machines(costs, {{32 * kGiB, 4 * kGiB}});
  request.assignments = {{"n0/CUDA0", {0, 32}}};
  const auto assigned = MakePlan(request);
  ASSERT_TRUE(assigned.ok()) << assigned.status();
  EXPECT_GT(assigned->stages[0].n_cpu_moe, 0u);
  request.cpu_moe = CpuMoe::kNone;
  EXPECT_THAT(MakePlan(request),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("do not fit on n0/CUDA0")));
  request.cpu_moe = CpuMoe::kAll;
  request.devices[0].memory_free_bytes = request.memory_pools[0].free_bytes = 6 * kGiB;
  EXPECT_THAT(MakePlan(request),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--cpu-moe")));
}

TEST(PlannerMoe, ModelsWithoutExpertsAreNotTouched) {
  const LayerCosts costs = testing::EqualLayers(32, 256 * kMiB);
  PlanRequest request = Machines(costs, {{32 * kGiB, 4 * kGiB}});
  const auto plan = MakePlan(request);
  request.cpu_moe = CpuMoe::kAll;
  const auto all = MakePlan(request);
  ASSERT_TRUE(plan.ok() && all.ok());
  ASSERT_EQ(plan->stages.size(), all->stages.size());
  for (const PlannedStage& stage : all->stages) EXPECT_EQ(stage.n_cpu_moe, 0u);
}

}  // namespace
}  // namespace strata
