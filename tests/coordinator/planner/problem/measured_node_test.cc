#include "coordinator/planner/problem/measured_node.h"

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/planner_instance.h"

namespace strata::testing {
namespace {

using ::testing::SizeIs;

constexpr uint64_t kGiB = 1ull << 30;

TEST(AddMeasuredNode, DevicesOfAMachineShareItsPools) {
  PlanRequest request;
  MeasuredDevice cpu, gpu, integrated;
  cpu.facts = {.name = "CPU", .memory_free_bytes = 16 * kGiB, .shares_machine_memory = true};
  gpu.facts = {.name = "CUDA0", .kind = DeviceFacts::Kind::kGpu, .memory_free_bytes = 8 * kGiB};
  integrated.facts = {.name = "Vulkan0",
                      .kind = DeviceFacts::Kind::kIntegratedGpu,
                      .memory_free_bytes = 12 * kGiB,
                      .shares_machine_memory = true};
  for (MeasuredDevice* device : {&cpu, &gpu, &integrated}) device->speed = SpeedOf(1e9);
  AddMeasuredNode("a", {}, {cpu, gpu, integrated}, &request);
  AddMeasuredNode("b", {.memory = "box", .cores = "box"}, {cpu}, &request);
  AddMeasuredNode("c", {.memory = "box", .cores = "box"}, {cpu}, &request);
  MeasuredDevice unmeasured = cpu;
  unmeasured.speed.types.clear();
  AddMeasuredNode("d", {}, {unmeasured}, &request);

  MeasuredDevice impossible = cpu;
  impossible.speed.types[0].bytes_per_s[2] = 0;
  AddMeasuredNode("e", {}, {impossible}, &request);

  ASSERT_THAT(request.devices, SizeIs(5));
  ASSERT_THAT(request.nodes, SizeIs(5));
  EXPECT_EQ(request.memory_pools[0].free_bytes, 16 * kGiB);
  EXPECT_EQ(request.devices[0].memory_pool, request.devices[2].memory_pool);
  EXPECT_EQ(request.devices[0].bandwidth_pool, request.devices[2].bandwidth_pool);
  EXPECT_NE(request.devices[0].cores_pool, kOwnPool);
  EXPECT_EQ(request.devices[2].cores_pool, kOwnPool);
  EXPECT_EQ(request.devices[1].memory_pool, kOwnPool);
  EXPECT_TRUE(request.devices[1].has_own_memory);
  EXPECT_FALSE(request.devices[0].has_own_memory);
  EXPECT_FALSE(request.devices[2].has_own_memory);
  EXPECT_EQ(request.devices[3].memory_pool, request.devices[4].memory_pool);
  EXPECT_NE(request.devices[0].memory_pool, request.devices[3].memory_pool);
  EXPECT_EQ(request.devices[3].cores_pool, request.devices[4].cores_pool);
  EXPECT_NE(request.devices[0].cores_pool, request.devices[3].cores_pool);
}

TEST(AddMeasuredNode, WhatIsLimitedIsNotShared) {
  PlanRequest request;
  MeasuredDevice cpu;
  cpu.facts = {.name = "CPU", .memory_free_bytes = 4 * kGiB, .shares_machine_memory = true};
  cpu.speed = SpeedOf(1e9);
  AddMeasuredNode("a", {.memory = "box /a", .cores = "box"}, {cpu}, &request);
  AddMeasuredNode("b", {.memory = "box /b", .cores = "box"}, {cpu}, &request);
  AddMeasuredNode("c", {.memory = "box", .cores = "box /c"}, {cpu}, &request);
  AddMeasuredNode("d", {.memory = "box", .cores = "box /d"}, {cpu}, &request);
  ASSERT_THAT(request.devices, SizeIs(4));
  EXPECT_NE(request.devices[0].memory_pool, request.devices[1].memory_pool);
  EXPECT_EQ(request.devices[0].cores_pool, request.devices[1].cores_pool);
  EXPECT_EQ(request.devices[2].memory_pool, request.devices[3].memory_pool);
  EXPECT_NE(request.devices[2].cores_pool, request.devices[3].cores_pool);
}

}  // namespace
}  // namespace strata::testing
