// Which steps libllama runs with the graph of the step before, and that the other steps are right
// as well.
#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "shard/device/memory.h"
#include "shard/engine/llama_stage.h"
#include "tests/shard/engine/stage_chain.h"

namespace strata {
namespace {

using ::strata::testing::RandomModelSpec;

constexpr int kSteps = 20;

// One row of unused logits is copied, two would be more than is worth it.
RandomModelSpec ManyTokens() {
  RandomModelSpec spec = Llama();
  spec.name = "graph_reuse_test_many_tokens";
  spec.n_vocab = 200'000;
  return spec;
}

int32_t Reused(Chain* chain, size_t stage) {
  return static_cast<LlamaStage&>(chain->stage(stage)).n_graphs_reused();
}

Rows StepOf(int32_t n_slots, int32_t position) {
  Rows rows;
  for (int32_t slot = 0; slot < n_slots; ++slot) rows = rows + Prompt(slot, position, 1);
  return rows;
}

// How many of kSteps steps of one row in each of `n_slots` slots reused a graph, for each stage.
std::vector<int32_t> ReusedOf(const RandomModelSpec& spec, const std::vector<uint32_t>& cuts,
                              int32_t n_slots) {
  Chain chain(OpenModel(spec), cuts, Options());
  std::vector<int32_t> reused;
  for (int32_t i = 0; i <= kSteps; ++i) {
    EXPECT_TRUE(chain.Decode(StepOf(n_slots, i)).ok());
    if (i > 0) continue;
    for (size_t k = 0; k + 1 < cuts.size(); ++k) reused.push_back(Reused(&chain, k));
  }
  for (size_t k = 0; k < reused.size(); ++k) reused[k] = Reused(&chain, k) - reused[k];
  return reused;
}

TEST(GraphReuse, EveryStageKeepsItsGraphFromStepToStep) {
  EXPECT_EQ(ReusedOf(Llama(), {0, 2, 4, 6}, 1), std::vector<int32_t>(3, kSteps));
  EXPECT_EQ(ReusedOf(Llama(), {0, 2, 4, 6}, 4), std::vector<int32_t>(3, kSteps));
}

TEST(GraphReuse, TheFirstStageMakesAGraphWhereUnusedLogitsWouldBeMany) {
  EXPECT_EQ(ReusedOf(ManyTokens(), {0, 2, 4, 6}, 1),
            std::vector<int32_t>({kSteps, kSteps, kSteps}));
  EXPECT_EQ(ReusedOf(ManyTokens(), {0, 2, 4, 6}, 2), std::vector<int32_t>({0, kSteps, kSteps}));
}

TEST(GraphReuse, APromptTakesNoMemoryForLogitsOfItsRows) {
  StageOptions options = Options();
  options.n_batch = 128;
  const std::unique_ptr<Stage> stage = LoadStage(OpenModel(ManyTokens()), {0, 2}, options);
  const uint64_t before = ResidentBytes();
  std::vector<int32_t> tokens(128, 1), positions, slots(128, 0);
  for (int32_t i = 0; i < 128; ++i) positions.push_back(i);
  const absl::Status status =
      stage->Decode({.tokens = tokens, .positions = positions, .slots = slots});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_LT(ResidentBytes(), before + (32u << 20));  // all of them are 98 MiB
}

// Prompts and steps in turns: graphs of either kind follow each other in the first stage.
TEST(GraphReuse, GraphsOfEitherKindGiveTheWholeModelsLogits) {
  const std::shared_ptr<const ModelFile> model = OpenModel(ManyTokens());
  Chain whole(model, {0, 6}, Options());
  Chain chain(model, {0, 2, 6}, Options());
  const auto expect_same = [&](const Rows& rows) {
    const absl::StatusOr<Logits> wanted = whole.Decode(rows);
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    const absl::StatusOr<Logits> got = chain.Decode(rows);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got, *wanted);
  };
  expect_same(Prompt(0, 0, 20));
  for (int32_t i = 0; i < 5; ++i) {
    expect_same(Prompt(0, 20 + 2 * i, 1));
    expect_same(Prompt(1, 10 * i, 10));
    expect_same(Prompt(0, 21 + 2 * i, 1) + Prompt(2, i, 1));
    ASSERT_FALSE(HasFailure()) << "round " << i;
  }
}

}  // namespace
}  // namespace strata
