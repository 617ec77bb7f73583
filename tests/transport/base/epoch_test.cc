#include "transport/base/epoch.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

wire::Epoch Make(uint64_t counter, const char* id) {
  wire::Epoch epoch;
  epoch.set_counter(counter);
  epoch.set_coordinator_id(id);
  return epoch;
}

TEST(Epoch, ComparesCounterFirst) {
  EXPECT_LT(CompareEpochs(Make(1, "z"), Make(2, "a")), 0);
  EXPECT_GT(CompareEpochs(Make(2, "a"), Make(1, "z")), 0);
}

TEST(Epoch, ComparesCoordinatorAmongEqualCounters) {
  EXPECT_LT(CompareEpochs(Make(2, "a"), Make(2, "b")), 0);
  EXPECT_GT(CompareEpochs(Make(2, "b"), Make(2, "a")), 0);
  EXPECT_EQ(CompareEpochs(Make(2, "b"), Make(2, "b")), 0);
}

TEST(Epoch, AnUnsetOneIsOlderThanAnyOther) {
  EXPECT_LT(CompareEpochs(wire::Epoch(), Make(1, "a")), 0);
  EXPECT_EQ(CompareEpochs(wire::Epoch(), wire::Epoch()), 0);
}

TEST(Epoch, CountersUseAll64Bits) {
  EXPECT_LT(CompareEpochs(Make(1, ""), Make(1ull << 63, "")), 0);
}

TEST(Epoch, OlderIsRefusedNamingBoth) {
  const absl::Status status = CheckEpoch(Make(3, "aa"), Make(4, "bb"));
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "epoch 3 of aa is older than the newest seen, 4 of bb");
  EXPECT_TRUE(CheckEpoch(Make(4, "bb"), Make(4, "bb")).ok());
  EXPECT_TRUE(CheckEpoch(Make(4, "bc"), Make(4, "bb")).ok());
}

}  // namespace
}  // namespace strata
