#include "coordinator/models/load_retries.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

const CapacityLimit kMemory = {.node_id = "a", .device = "CPU", .bytes = 1};
const CapacityLimit kDisk = {.node_id = "a", .device = "", .bytes = 1};

TEST(LoadRetries, PlansFourTimesForWantOfMemory) {
  LoadRetries retries(/*assigned=*/false, {});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(retries.OnFailed(kMemory, false));
  EXPECT_FALSE(retries.OnFailed(kMemory, false));
  EXPECT_THAT(retries.limits(), SizeIs(3));
}

TEST(LoadRetries, DisksAreCountedOnlyByTheLimitsThatAreKnown) {
  LoadRetries retries(/*assigned=*/false, {kMemory});
  for (size_t i = 1; i < kCapacityLimitsMax; ++i) EXPECT_TRUE(retries.OnFailed(kDisk, false));
  EXPECT_FALSE(retries.OnFailed(kDisk, false));
  EXPECT_THAT(retries.limits(), SizeIs(kCapacityLimitsMax));
}

TEST(LoadRetries, WhatAPersonAssignedGoesNowhereElse) {
  LoadRetries retries(/*assigned=*/true, {});
  EXPECT_FALSE(retries.OnFailed(kMemory, false));
  EXPECT_THAT(retries.limits(), IsEmpty());
}

TEST(LoadRetries, ABrokenConnectionIsTriedOnceMore) {
  LoadRetries retries(/*assigned=*/true, {});
  EXPECT_TRUE(retries.OnFailed(std::nullopt, true));
  EXPECT_FALSE(retries.OnFailed(std::nullopt, true));
  EXPECT_FALSE(retries.OnFailed(std::nullopt, false));
}

}  // namespace
}  // namespace strata
