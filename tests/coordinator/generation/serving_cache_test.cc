// The caches of real stages: the planner's prediction and libllama's allocation, many requests over
// few cells, restored checkpoints, and the context's end.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/planner/costs/layer_costs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/model/model_file.h"
#include "tests/coordinator/generation/serving_support.h"

namespace strata {
namespace {

// Without rows for what libllama notes of each cell, as Stage::Facts::kv_bytes has them.
constexpr uint64_t kCellBytes = 48;

struct Shape {
  std::string name;
  std::string model;
  std::vector<uint32_t> cuts;
  CacheOptions cache;
};

class Prediction : public ::testing::TestWithParam<Shape> {};

TEST_P(Prediction, ThePlannerPredictsTheBytesThatLibllamaAllocates) {
  const Shape& shape = GetParam();
  constexpr uint32_t kContext = 1024, kSlots = 3, kBatch = 64;
  const std::string path = ModelPath(shape.model);
  GenerationEngine unused({});
  const auto pipeline = LocalPipeline::Open({.model_path = path,
                                             .cuts = shape.cuts,
                                             .n_ctx = kContext,
                                             .n_slots = kSlots,
                                             .n_batch = kBatch,
                                             .cache = shape.cache},
                                            &unused);
  ASSERT_TRUE(pipeline.ok()) << pipeline.status();
  const auto file = ModelFile::Open(path);
  ASSERT_TRUE(file.ok());
  const auto costs = CountLayerCosts((*file)->header(),
                                     {.type_k = shape.cache.type_k, .type_v = shape.cache.type_v});
  ASSERT_TRUE(costs.ok()) << costs.status();
  const CacheShape cache = {.n_ctx = kContext,
                            .n_seqs = kSlots,
                            .n_batch = kBatch,
                            .kv_cells = CellsOf(shape.cache, kContext, kSlots),
                            .n_checkpoints = 0,
                            .flash_attention = shape.cache.flash_attention != "off"};
  CacheShape with_checkpoints = cache;
  with_checkpoints.n_checkpoints = shape.cache.checkpoints;
  for (const wire::StageInfo& stage : (*pipeline)->stages()) {
    uint64_t predicted = cache.cells() * kCellBytes;
    uint64_t checkpoints = 0;
    for (uint32_t i = stage.layers().begin(); i < stage.layers().end(); ++i) {
      predicted += CacheBytes(costs->layers[i], cache);
      checkpoints +=
          CacheBytes(costs->layers[i], with_checkpoints) - CacheBytes(costs->layers[i], cache);
    }
    SCOPED_TRACE(::testing::Message() << "stage " << stage.stage());
    // libllama reports its bytes in hundredths of a MiB.
    EXPECT_NEAR(static_cast<double>(stage.kv_bytes()), static_cast<double>(predicted),
                0.02 * static_cast<double>(predicted) + 20'000);
    EXPECT_EQ(stage.kv_cells(), cache.cells());
    EXPECT_LE(stage.compute_bytes(),
              ComputeBytes(*costs, cache, stage.stage() + 1 == (*pipeline)->stages().size()));
    EXPECT_EQ(stage.checkpoints() > 0, checkpoints > 0);
    EXPECT_NEAR(static_cast<double>(stage.checkpoint_bytes()), static_cast<double>(checkpoints),
                0.1 * static_cast<double>(checkpoints) + 32'000 * stage.checkpoints());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Prediction,
    ::testing::Values(
        Shape{"llama", "llama/32", {2}, {}},
        Shape{"llama_q8_0", "llama/32", {2}, {.type_k = "q8_0", .type_v = "q8_0"}},
        Shape{"llama_q4_0_few_cells",
              "llama/32",
              {2},
              {.type_k = "q4_0", .type_v = "q4_0", .kv_cells = 1280}},
        Shape{"llama_without_flash_attention",
              "llama/32",
              {2},
              {.type_k = "q8_0", .type_v = "f16", .flash_attention = "off"}},
        Shape{"llama_f32_whole",
              "llama/32",
              {},
              {.type_k = "f32", .type_v = "f32", .flash_attention = "on"}},
        Shape{"gemma3_whole", "gemma3", {}, {.checkpoints = 3}},
        Shape{"gemma3_array_mixed",
              "gemma3_array/32",
              {3},
              {.type_k = "q8_0", .type_v = "q4_0", .checkpoints = 2}},
        Shape{"gemma3_array_few_cells", "gemma3_array", {3}, {.kv_cells = 1536}},
        Shape{"mamba2", "mamba2", {3}, {.checkpoints = 4}},
        Shape{"falcon_h1", "falcon_h1", {3}, {.checkpoints = 2}},
        Shape{"qwen3next",
              "qwen3next",
              {4},
              {.type_k = "q8_0", .type_v = "q8_0", .kv_cells = 1024, .checkpoints = 2}}),
    [](const auto& test) { return test.param.name; });

// A conversation that goes on in other stages, which have only the disks of those before.
class KeptOnDisk : public ::testing::TestWithParam<std::string> {};

TEST_P(KeptOnDisk, ASequenceGoesOnFromTheDiskAsItWouldHave) {
  const std::vector<uint32_t> cuts = {GetParam() == "qwen3next" ? 4u : 3u};
  const LocalPipelineOptions options = {.model_path = ModelPath(GetParam()),
                                        .cuts = cuts,
                                        .n_ctx = 256,
                                        .n_slots = 2,
                                        .kv_folder = testing::MakeTestFolder()};
  GenerationRequest request = MakeRequest(1, 100, 12);
  {
    Serving first(options, SchedulerPolicy{.chunk_tokens = 16});
    const Output answer = first.Generate(request);
    request.prompt.insert(request.prompt.end(), answer.tokens.begin(), answer.tokens.end());
    // The stages store it behind the answer's end.
    for (int i = 0; i < 1000 && first.engine->Stats().kv_blocks == 0; ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
  }
  const GenerationRequest more = MakeRequest(2, 20, 1);
  request.prompt.insert(request.prompt.end(), more.prompt.begin(), more.prompt.end());
  Serving without({.model_path = options.model_path, .cuts = cuts, .n_ctx = 256, .n_slots = 2},
                  SchedulerPolicy{.chunk_tokens = 16});
  const Output expected = without.Generate(request);
  EXPECT_EQ(without.cached, 0u);
  Serving second(options, SchedulerPolicy{.chunk_tokens = 16});
  ExpectSame(second.Generate(request), expected);
  // All but the last token of the answer was fed; of it, whole blocks or the state.
  EXPECT_EQ(second.cached, second.pipeline->stages()[0].cache().rewind() ? 64u : 111u);
}

INSTANTIATE_TEST_SUITE_P(
    Models, KeptOnDisk, ::testing::Values("llama/32", "gemma3", "mamba2", "falcon_h1", "qwen3next"),
    [](const auto& test) { return test.param.substr(0, test.param.find('/')); });

// Many requests over a budget of cells that a few of them fill.
class FewCells : public ::testing::TestWithParam<std::string> {};

TEST_P(FewCells, EveryRequestEndsWithItsOutputAsAlone) {
  constexpr int kRequests = 12;
  constexpr uint32_t kCells = 256, kSlots = 6, kContext = 128;
  const auto request_of = [](int i) {
    return MakeRequest(i, 20 + 5 * (static_cast<uint32_t>(i) % 7), 60);
  };
  std::vector<Output> alone;
  {
    Serving by_itself(GetParam(), {3}, 1, {.chunk_tokens = 16, .keep_prefixes = false});
    for (int i = 0; i < kRequests; ++i) alone.push_back(by_itself.Generate(request_of(i)));
  }
  Serving serving({.model_path = ModelPath(GetParam()),
                   .cuts = {3},
                   .n_ctx = kContext,
                   .n_slots = kSlots,
                   .cache = {.kv_cells = kCells}},
                  {.chunk_tokens = 16});
  std::vector<std::shared_ptr<Listener>> listeners;
  for (int i = 0; i < kRequests; ++i) {
    listeners.push_back(std::make_shared<Listener>());
    ASSERT_TRUE(serving.engine->Add(request_of(i), listeners.back()).ok());
  }
  for (int i = 0; i < kRequests; ++i) {
    const absl::Status end = listeners[i]->WaitForEnd();
    EXPECT_TRUE(end.ok()) << end;
    SCOPED_TRACE(::testing::Message() << "request " << i);
    EXPECT_EQ(listeners[i]->output().tokens.size(), 60);
    ExpectSame(listeners[i]->output(), alone[i]);
  }
  const SchedulerStats stats = serving.engine->Stats();
  EXPECT_EQ(stats.kv_cells, kCells);
  EXPECT_EQ(stats.steps_failed, 0);  // libllama never ran out
  EXPECT_GT(stats.preemptions, 0);   // because some were fed again
  // A request that needs more than its context ends there.
  GenerationRequest long_request = request_of(1);
  long_request.tokens_max = 1000;
  EXPECT_EQ(serving.Generate(long_request).tokens.size(), kContext - long_request.prompt.size());
}

INSTANTIATE_TEST_SUITE_P(Models, FewCells, ::testing::Values("llama", "falcon_h1", "gemma3_array"),
                         [](const auto& test) { return test.param; });

// A second prompt that parts from the first in its middle, where the cache cannot trim.
class GoingBack : public ::testing::TestWithParam<std::string> {
 protected:
  static GenerationRequest Request(int32_t last) {
    GenerationRequest request = MakeRequest(1, 90, 20);
    for (int32_t i = 0; i < 10; ++i) request.prompt[80 + i] = 3 + (last * 17 + i) % 90;
    return request;
  }
  std::unique_ptr<Serving> Open(uint32_t checkpoints, uint32_t n_slots = 2) {
    return std::make_unique<Serving>(LocalPipelineOptions{.model_path = ModelPath(GetParam()),
                                                          .cuts = {3},
                                                          .n_slots = n_slots,
                                                          .cache = {.checkpoints = checkpoints}},
                                     SchedulerPolicy{.chunk_tokens = 16});
  }
};

TEST_P(GoingBack, GivesTheOutputOfASequenceThatIsFedFully) {
  const auto with = Open(4);
  const auto without = Open(0);
  for (int32_t last = 0; last < 4; ++last) {
    SCOPED_TRACE(last);
    const Output expected = without->Generate(Request(last));
    EXPECT_EQ(without->cached, 0);
    const Output got = with->Generate(Request(last));
    EXPECT_EQ(got.tokens.size(), expected.tokens.size());
    ExpectSame(got, expected);
    EXPECT_EQ(with->cached, last == 0 ? 0 : last == 1 ? 74 : 80);
  }
  EXPECT_EQ(with->engine->Stats().checkpoints_used, 3);
  EXPECT_EQ(with->engine->Stats().steps_failed, 0);
}

TEST_P(GoingBack, BesideOthersDoesNotChangeThem) {
  const auto with = Open(6, 4);
  const auto without = Open(0, 1);
  std::vector<Output> expected;
  for (int32_t last = 0; last < 12; ++last) expected.push_back(without->Generate(Request(last)));
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Listener>> listeners;
    for (int32_t last = 0; last < 12; ++last) {
      listeners.push_back(std::make_shared<Listener>());
      ASSERT_TRUE(with->engine->Add(Request(last), listeners.back()).ok());
    }
    for (int32_t last = 0; last < 12; ++last) {
      EXPECT_TRUE(listeners[last]->WaitForEnd().ok());
      SCOPED_TRACE(::testing::Message() << "request " << last << ", round " << round);
      ExpectSame(listeners[last]->output(), expected[last]);
    }
  }
  EXPECT_GT(with->engine->Stats().checkpoints_used, 6);
  EXPECT_EQ(with->engine->Stats().steps_failed, 0);
}

// Every stage in turn fails the edits, or the batch, of a step that saves or restores.
TEST_P(GoingBack, ASequenceWhoseStepFailsInOneStageIsFedAgain) {
  const auto without = Open(0);
  std::vector<Output> expected;
  for (int32_t last = 0; last < 3; ++last) expected.push_back(without->Generate(Request(last)));
  for (uint32_t stage = 0; stage < 2; ++stage) {
    for (const auto failure : {LocalPipeline::Failure::kBefore, LocalPipeline::Failure::kDataLoss,
                               LocalPipeline::Failure::kEdits}) {
      const auto serving = Open(4);
      for (int32_t last = 0; last < 3; ++last) {
        SCOPED_TRACE(::testing::Message() << "stage " << stage << ", request " << last);
        const bool in_prompt = last == 0 && failure != LocalPipeline::Failure::kEdits;
        serving->pipeline->FailBatch(stage, in_prompt ? 5 : 0, failure);
        const Output output = serving->Generate(Request(last));
        EXPECT_EQ(output.tokens.size(), expected[last].tokens.size());
        ExpectSame(output, expected[last]);
      }
      EXPECT_GE(serving->engine->Stats().steps_failed, 2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoingBack,
                         ::testing::Values("mamba2", "mamba", "falcon_h1", "gemma3_array"),
                         [](const auto& test) { return test.param; });

TEST(ContextEnd, IsALengthUnlessItMayShiftAndCan) {
  for (const std::string type : {"f16", "q8_0", "q4_0"}) {
    SCOPED_TRACE(type);
    Serving serving({.model_path = ModelPath("llama/64"),
                     .cuts = {3},
                     .cache = {.type_k = type, .type_v = type}},
                    {.chunk_tokens = 16});
    GenerationRequest request = MakeRequest(1, 30, 300);
    request.keep_tokens = 4;
    for (const bool shifts : {true, false}) {
      request.shift_context = shifts;
      const auto listener = std::make_shared<Listener>();
      ASSERT_TRUE(serving.engine->Add(request, listener).ok());
      EXPECT_TRUE(listener->WaitForEnd().ok());
      EXPECT_EQ(listener->output().tokens.size(), shifts ? 300 : 128 - 30);
      EXPECT_EQ(listener->reason(), FinishReason::kLength);
    }
    EXPECT_EQ(serving.engine->Stats().steps_failed, 0);
  }
  // States and windows cannot be shifted.
  for (const char* model : {"mamba2", "gemma3_array"}) {
    SCOPED_TRACE(model);
    Serving serving(model, {3});
    GenerationRequest request = MakeRequest(1, 30, 300);
    request.shift_context = true;
    EXPECT_EQ(serving.Generate(request).tokens.size(), 128 - 30);
    EXPECT_EQ(serving.engine->Stats().steps_failed, 0);
  }
}

}  // namespace
}  // namespace strata
