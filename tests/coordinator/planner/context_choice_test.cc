#include "coordinator/planner/context_choice.h"

#include "absl/status/status_matchers.h"
#include "coordinator/planner/planner.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/planner_instance.h"

namespace strata::testing {
namespace {

constexpr uint64_t kMiB = 1u << 20;

// 32 layers of 64 MiB, with 4 KiB of cache for each position.
LayerCosts Costs() {
  LayerCosts costs = EqualLayers(32, 64 * kMiB);
  for (LayerCost& layer : costs.layers) layer.kv_bytes_per_position = 4096;
  return costs;
}

class LengthenContextTest : public ::testing::Test {
 protected:
  // The context that is chosen where each node has so much memory.
  uint32_t Chosen(const std::vector<NodeShape>& nodes, uint32_t n_ctx_max) {
    request_ = RequestFor(costs_, nodes);
    request_.cache = {.n_ctx = 4096, .n_seqs = 4, .n_batch = 512};
    auto plan = MakePlan(request_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    plan_ = *std::move(plan);
    stages_before_ = plan_.stages.size();
    LengthenContext(n_ctx_max, &request_, &plan_);
    return request_.cache.n_ctx;
  }

  const LayerCosts costs_ = Costs();
  PlanRequest request_;
  Plan plan_;
  size_t stages_before_ = 0;
};

TEST_F(LengthenContextTest, IsTheModelsOwnWhereThereIsRoom) {
  EXPECT_EQ(Chosen({{512 * 1024 * kMiB, 50e9}}, 40'000), 40'000u);
  EXPECT_EQ(request_.PredictedPositions(), 4096u);
  EXPECT_GE(plan_.stages[0].cache_bytes, 32ull * 4096 * 4 * 40'000);
  EXPECT_EQ(Chosen({{512 * 1024 * kMiB, 50e9}}, 2048), 4096u);  // as it was asked for
}

TEST_F(LengthenContextTest, TakesHalfOfWhatThePlanLeaves) {
  // 2 GiB of layers, 2 GiB of cache; of some 12 GiB that are left 6 become cache.
  EXPECT_EQ(Chosen({{16 * 1024 * kMiB, 50e9}}, 131'072) / 1024, 15u);
  EXPECT_LT(plan_.stages[0].memory_bytes(), 11 * 1024 * kMiB);
}

TEST_F(LengthenContextTest, NoFurtherNodeIsUsedForIt) {
  const std::vector<NodeShape> nodes = {{5 * 1024 * kMiB, 200e9}, {64 * 1024 * kMiB, 5e9}};
  const uint32_t n_ctx = Chosen(nodes, 131'072);
  EXPECT_GE(n_ctx, 4096u);
  EXPECT_LT(n_ctx, 8192u);
  EXPECT_EQ(plan_.stages.size(), stages_before_);
}

TEST_F(LengthenContextTest, ASharedCacheStaysAsItIs) {
  request_ = RequestFor(costs_, {{512 * 1024 * kMiB, 50e9}});
  request_.cache = {.n_ctx = 4096, .n_seqs = 4, .n_batch = 512, .kv_cells = 8192};
  auto plan = MakePlan(request_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  LengthenContext(131'072, &request_, &*plan);
  EXPECT_EQ(request_.cache.n_ctx, 4096u);
}

}  // namespace
}  // namespace strata::testing
