#include "shard/engine/slot_streams.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace strata {
namespace {

uint64_t BytesMoved(const SlotStreams::Plan& plan, const std::vector<uint64_t>& bytes) {
  uint64_t moved = 0;
  for (const auto& [slot, other] : plan.exchanges) moved += bytes[slot] + bytes[other];
  return moved;
}

TEST(SlotStreams, ASlotBeginsWithTheStreamOfItsNumber) {
  const SlotStreams streams(4);
  for (int32_t slot = 0; slot < 4; ++slot) EXPECT_EQ(streams.Of(slot), slot);
}

TEST(SlotStreams, RunsAreAdjacentStreamsInAnyOrderOfSlots) {
  const SlotStreams streams(6);
  EXPECT_EQ(streams.RunsOf({}), 0);
  EXPECT_EQ(streams.RunsOf({3}), 1);
  EXPECT_EQ(streams.RunsOf({2, 0, 1}), 1);
  EXPECT_EQ(streams.RunsOf({0, 2, 5}), 3);
  EXPECT_EQ(streams.RunsOf({4, 5, 0}), 2);
}

TEST(SlotStreams, EmptyStreamsAreExchangedAtNoCost) {
  SlotStreams streams(8);
  const std::vector<uint64_t> bytes = {0, 0, 50, 0, 0, 70, 0, 0};
  const SlotStreams::Plan plan = streams.Gather({2, 7}, bytes);
  EXPECT_EQ(plan.bytes, 0);
  ASSERT_EQ(plan.exchanges.size(), 1);
  streams.Apply(plan.exchanges[0]);
  EXPECT_EQ(streams.RunsOf({2, 7}), 1);
  EXPECT_EQ(streams.Of(2), 2);
}

TEST(SlotStreams, AdjacentOnesStayWhereTheyAre) {
  const SlotStreams streams(5);
  const SlotStreams::Plan plan = streams.Gather({3, 1, 2}, std::vector<uint64_t>(5, 9));
  EXPECT_EQ(plan.bytes, 0);
  EXPECT_TRUE(plan.exchanges.empty());
}

TEST(SlotStreams, TheSmallestContentsMove) {
  SlotStreams streams(4);
  // Slot 3 could go beside slot 0, or slot 0 beside slot 3, where a small one is in the way.
  const std::vector<uint64_t> bytes = {10, 500, 1, 100};
  const SlotStreams::Plan plan = streams.Gather({0, 3}, bytes);
  EXPECT_EQ(plan.bytes, 11);
  ASSERT_EQ(plan.exchanges.size(), 1);
  EXPECT_EQ(plan.exchanges[0].slot, 0);
  EXPECT_EQ(plan.exchanges[0].other, 2);
}

TEST(SlotStreams, AnyPlanGathersItsSlotsForTheBytesItSays) {
  std::mt19937 random(7);
  SlotStreams streams(9);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> slots;
    std::vector<uint64_t> bytes(9);
    for (int32_t slot = 0; slot < 9; ++slot) {
      if (random() % 3 == 0) slots.push_back(slot);
      bytes[slot] = random() % 4;
    }
    if (slots.empty()) continue;
    std::shuffle(slots.begin(), slots.end(), random);
    const SlotStreams::Plan plan = streams.Gather(slots, bytes);
    EXPECT_EQ(plan.bytes, BytesMoved(plan, bytes));
    EXPECT_EQ(plan.exchanges.empty(), streams.RunsOf(slots) == 1);
    for (const SlotStreams::Exchange& exchange : plan.exchanges) streams.Apply(exchange);
    EXPECT_EQ(streams.RunsOf(slots), 1);
    std::vector<bool> taken(9, false);
    for (int32_t slot = 0; slot < 9; ++slot) taken[streams.Of(slot)] = true;
    EXPECT_EQ(std::vector<bool>(9, true), taken);
  }
}

}  // namespace
}  // namespace strata
