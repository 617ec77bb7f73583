#include "shard/engine/warm_up.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/engine/llama_stage.h"
#include "shard/engine/stage.h"
#include "shard/model/model_file.h"
#include "tests/shard/engine/stage_chain.h"

namespace strata {
namespace {

using Kind = DeviceFacts::Kind;
using ::testing::ElementsAre;

TEST(WarmUpRows, AreOfEachKernelThatAGpuHas) {
  EXPECT_THAT(WarmUpRows(Kind::kGpu, /*own_memory=*/true, 512),
              ElementsAre(512, 128, 64, 32, 8, 7, 6, 5, 4, 3, 2, 1));
}

TEST(WarmUpRows, AreNoMoreThanTheStageTakes) {
  EXPECT_THAT(WarmUpRows(Kind::kGpu, /*own_memory=*/true, 100),
              ElementsAre(100, 64, 32, 8, 7, 6, 5, 4, 3, 2, 1));
  EXPECT_THAT(WarmUpRows(Kind::kGpu, /*own_memory=*/true, 64),
              ElementsAre(64, 32, 8, 7, 6, 5, 4, 3, 2, 1));
  EXPECT_THAT(WarmUpRows(Kind::kGpu, /*own_memory=*/true, 3), ElementsAre(3, 2, 1));
  EXPECT_THAT(WarmUpRows(Kind::kIntegratedGpu, /*own_memory=*/false, 2), ElementsAre(2, 1));
  EXPECT_THAT(WarmUpRows(Kind::kCpu, /*own_memory=*/false, 5), ElementsAre(5, 1));
  EXPECT_THAT(WarmUpRows(Kind::kCpu, /*own_memory=*/false, 1), ElementsAre(1));
}

TEST(WarmUpRows, AreFewWhereTheMachinesMemoryIsTheDevices) {
  EXPECT_THAT(WarmUpRows(Kind::kIntegratedGpu, /*own_memory=*/false, 512),
              ElementsAre(128, 64, 32, 8, 7, 6, 5, 4, 3, 2, 1));
  // Apple's GPUs.
  EXPECT_THAT(WarmUpRows(Kind::kGpu, /*own_memory=*/false, 512),
              ElementsAre(128, 64, 32, 8, 7, 6, 5, 4, 3, 2, 1));
  EXPECT_THAT(WarmUpRows(Kind::kCpu, /*own_memory=*/false, 512), ElementsAre(16, 1));
}

// A first, a middle and a last stage of every kind of cache continue as if they had run nothing.
TEST(WarmUp, LeavesNothingBehind) {
  for (const auto& spec : {Llama(), Mamba(), Windowed(), TwoRanges()}) {
    const std::shared_ptr<const ModelFile> model = OpenModel(spec);
    const std::vector<uint32_t> cuts = {0, 1, 3, model->n_layer()};
    Chain cold(model, cuts, Options());
    Chain warm(model, cuts, Options());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      auto* const stage = dynamic_cast<LlamaStage*>(&warm.stage(i));
      ASSERT_NE(stage, nullptr);
      const auto before = stage->SlotStateOf(0);
      ASSERT_TRUE(WarmUp(WarmUpRows(Kind::kGpu, /*own_memory=*/true, 64), stage).ok());
      EXPECT_EQ(stage->SlotStateOf(0).positions, 0u);
      EXPECT_NE(stage->SlotStateOf(0).version, before.version) << "nothing was run";
    }
    for (const Rows& rows : {Prompt(0, 0, 20) + Prompt(2, 0, 7), Prompt(0, 20, 1)}) {
      const auto right = cold.Decode(rows);
      const auto got = warm.Decode(rows);
      ASSERT_TRUE(right.ok()) << right.status();
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(*got, *right) << spec.name;
    }
  }
}

TEST(WarmUp, FailsAsAStepDoes) {
  const std::shared_ptr<const ModelFile> model = OpenModel(Llama());
  Chain chain(model, {0, model->n_layer()}, Options());
  const absl::Status status = WarmUp({65}, dynamic_cast<LlamaStage*>(&chain.stage(0)));
  EXPECT_FALSE(status.ok()) << "a batch has 64 rows at most";
}

}  // namespace
}  // namespace strata
