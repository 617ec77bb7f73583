#include "coordinator/planner/costs/layer_costs.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "ggml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gguf_values.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void AddTensor(GgufHeader* header, const std::string& name, std::array<uint64_t, 4> dims,
               ggml_type type = GGML_TYPE_Q8_0) {
  GgufTensor tensor;
  tensor.name = name;
  tensor.n_dims = dims[3] > 1 ? 4 : dims[2] > 1 ? 3 : dims[1] > 1 ? 2 : 1;
  tensor.dims = dims;
  tensor.type = type;
  tensor.bytes = GgufTensorBytes(type, dims).value();
  header->tensors.push_back(tensor);
}

// Rows of 64, 4 heads of 16 with 2 for keys and values, a vocabulary of 1000.
GgufHeader Model(const std::string& architecture, uint32_t n_layer, bool tied = false) {
  GgufHeader header;
  header.Set("general.architecture", GgufValue::String(architecture));
  const auto set = [&](const char* key, uint32_t value) {
    header.Set(absl::StrCat(architecture, ".", key), GgufValue::U32(value));
  };
  set("block_count", n_layer);
  set("embedding_length", 64);
  set("feed_forward_length", 256);
  set("attention.head_count", 4);
  set("attention.head_count_kv", 2);
  AddTensor(&header, "token_embd.weight", {64, 1000, 1, 1});
  AddTensor(&header, "output_norm.weight", {64, 1, 1, 1}, GGML_TYPE_F32);
  if (!tied) AddTensor(&header, "output.weight", {64, 1000, 1, 1}, GGML_TYPE_F16);
  for (uint32_t i = 0; i < n_layer; ++i) {
    AddTensor(&header, absl::StrCat("blk.", i, ".attn_q.weight"), {64, 64, 1, 1});
    AddTensor(&header, absl::StrCat("blk.", i, ".attn_k.weight"), {64, 32, 1, 1});
  }
  return header;
}

uint64_t Bytes(ggml_type type, uint64_t rows) {
  return GgufTensorBytes(type, {64, rows, 1, 1}).value();
}

LayerCosts Count(const GgufHeader& header) {
  absl::StatusOr<LayerCosts> costs = CountLayerCosts(header, {});
  EXPECT_TRUE(costs.ok()) << costs.status();
  return costs.value_or(LayerCosts());
}

TEST(LayerCosts, CountsWeightsByType) {
  const LayerCosts costs = Count(Model("llama", 3));
  ASSERT_EQ(costs.n_layer(), 3);
  EXPECT_EQ(costs.layers[1].weight_bytes, Bytes(GGML_TYPE_Q8_0, 96));
  EXPECT_THAT(costs.layers[1].dense,
              ElementsAre(TypedBytes{GGML_TYPE_Q8_0, Bytes(GGML_TYPE_Q8_0, 96)}));
  EXPECT_TRUE(costs.layers[1].experts.empty());
  EXPECT_EQ(costs.n_embd, 64);
  EXPECT_EQ(costs.n_vocab, 1000);
  EXPECT_THAT(costs.head, ElementsAre(TypedBytes{GGML_TYPE_F16, Bytes(GGML_TYPE_F16, 1000)}));
}

TEST(LayerCosts, TheEndsHaveTheirVocabularyAndAPlaceholder) {
  GgufHeader header = Model("llama", 3);
  // IQ1_S has blocks of 256; these rows of 64 are too short, so the placeholder is Q4_0.
  const LayerCosts costs = Count(header);
  const uint64_t layer = Bytes(GGML_TYPE_Q8_0, 96), norm = 256;
  const uint64_t embedding = Bytes(GGML_TYPE_Q8_0, 1000), output = Bytes(GGML_TYPE_F16, 1000);
  const uint64_t placeholder = Bytes(GGML_TYPE_Q4_0, 1000);
  EXPECT_EQ(costs.WeightBytes({0, 1}), layer + embedding + placeholder);
  EXPECT_EQ(costs.WeightBytes({1, 2}), layer);
  EXPECT_EQ(costs.WeightBytes({1, 3}), 2 * layer + output + norm + placeholder);
  EXPECT_EQ(costs.WeightBytes({0, 3}), 3 * layer + embedding + output + norm);
}

TEST(LayerCosts, ATiedEmbeddingIsHeldAtBothEndsButOnceByTheWholeModel) {
  const LayerCosts costs = Count(Model("llama", 2, /*tied=*/true));
  const uint64_t layer = Bytes(GGML_TYPE_Q8_0, 96), norm = 256;
  const uint64_t embedding = Bytes(GGML_TYPE_Q8_0, 1000);
  EXPECT_EQ(costs.WeightBytes({0, 1}), layer + embedding);
  EXPECT_EQ(costs.WeightBytes({1, 2}), layer + embedding + norm);
  EXPECT_EQ(costs.WeightBytes({0, 2}), 2 * layer + embedding + norm);
  EXPECT_THAT(costs.head, ElementsAre(TypedBytes{GGML_TYPE_Q8_0, embedding}));
}

TEST(LayerCosts, TellsRoutedExpertsFromSharedOnes) {
  GgufHeader header = Model("qwen3moe", 2);
  header.Set("qwen3moe.expert_used_count", GgufValue::U32(2));
  AddTensor(&header, "blk.1.ffn_up_exps.weight", {64, 32, 8, 1});
  AddTensor(&header, "blk.1.ffn_up_shexp.weight", {64, 32, 1, 1});
  const LayerCosts costs = Count(header);
  EXPECT_EQ(costs.layers[0].n_expert, 0);
  EXPECT_EQ(costs.layers[1].n_expert, 8);
  EXPECT_EQ(costs.layers[1].n_expert_used, 2);
  EXPECT_THAT(costs.layers[1].experts,
              ElementsAre(TypedBytes{GGML_TYPE_Q8_0, Bytes(GGML_TYPE_Q8_0, 32 * 8)}));
  EXPECT_THAT(costs.layers[1].dense,
              ElementsAre(TypedBytes{GGML_TYPE_Q8_0, Bytes(GGML_TYPE_Q8_0, 96 + 32)}));
}

TEST(LayerCosts, ReadsAllExpertsWhenTheNumberUsedIsNotKnown) {
  GgufHeader header = Model("qwen3moe", 1);
  AddTensor(&header, "blk.0.ffn_up_exps.weight", {64, 32, 8, 1});
  EXPECT_EQ(Count(header).layers[0].n_expert_used, 8);
}

TEST(LayerCosts, MoreTokensTouchMoreExpertsButNeverAll) {
  LayerCost layer;
  layer.n_expert = 128;
  layer.n_expert_used = 8;
  EXPECT_DOUBLE_EQ(layer.ExpertsTouched(1), 8);
  EXPECT_NEAR(layer.ExpertsTouched(2), 15.5, 1e-9);
  EXPECT_GT(layer.ExpertsTouched(64), 120);
  EXPECT_LT(layer.ExpertsTouched(64), 128);
}

TEST(LayerCosts, TheCacheFollowsHeadsAndTypes) {
  GgufHeader header = Model("llama", 2);
  EXPECT_EQ(Count(header).layers[0].kv_bytes_per_position, 2 * (16 + 16) * 2);
  EXPECT_EQ(Count(header).layers[0].kv_sharing, 2);
  header.Set("llama.attention.key_length", GgufValue::U32(64));
  header.Set("llama.attention.value_length", GgufValue::U32(32));
  EXPECT_EQ(CountLayerCosts(header, {.type_k = "q8_0"})->layers[1].kv_bytes_per_position,
            2 * (64 * 34 / 32 + 32 * 2));
  EXPECT_THAT(CountLayerCosts(header, {.type_v = "q9"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("q9")));
}

TEST(LayerCosts, LatentAttentionKeepsOneRowForAllHeads) {
  GgufHeader header = Model("deepseek2", 1);
  const std::pair<const char*, uint32_t> keys[] = {{"head_count_kv", 1},
                                                   {"key_length", 40},
                                                   {"value_length", 32},
                                                   {"key_length_mla", 24},
                                                   {"value_length_mla", 16}};
  for (const auto& [key, value] : keys) {
    header.Set(absl::StrCat("deepseek2.attention.", key), GgufValue::U32(value));
  }
  EXPECT_EQ(Count(header).layers[0].kv_bytes_per_position, 40 * 2);
  EXPECT_EQ(Count(header).layers[0].kv_sharing, 4);
}

TEST(LayerCosts, ALayerWithoutKeysOfItsOwnHasAStateInstead) {
  GgufHeader header = Model("qwen3next", 2);
  std::erase_if(header.tensors,
                [](const GgufTensor& t) { return t.name == "blk.0.attn_k.weight"; });
  AddTensor(&header, "blk.0.ssm_conv1d.weight", {4, 64, 1, 1}, GGML_TYPE_F32);
  header.Set("qwen3next.ssm.inner_size", GgufValue::U32(128));
  header.Set("qwen3next.ssm.state_size", GgufValue::U32(16));
  header.Set("qwen3next.ssm.conv_kernel", GgufValue::U32(4));
  header.Set("qwen3next.ssm.group_count", GgufValue::U32(2));
  const LayerCosts costs = Count(header);
  EXPECT_EQ(costs.layers[0].kv_bytes_per_position, 0);
  EXPECT_EQ(costs.layers[0].state_bytes, 4 * (16 * 128 + 3 * (128 + 2 * 2 * 16)));
  EXPECT_GT(costs.layers[1].kv_bytes_per_position, 0);
  EXPECT_EQ(costs.layers[1].state_bytes, 0);
  EXPECT_EQ(CacheBytes(costs.layers[0], {.n_ctx = 9999, .n_seqs = 3}),
            3 * costs.layers[0].state_bytes);
}

TEST(LayerCosts, WindowedLayersKeepTheirWindow) {
  GgufHeader header = Model("gemma3", 12);
  header.Set("gemma3.attention.sliding_window", GgufValue::U32(512));
  const LayerCosts costs = Count(header);
  for (uint32_t i = 0; i < 12; ++i) {
    EXPECT_EQ(costs.layers[i].window, i % 6 == 5 ? 0u : 512u) << i;
  }
  const uint64_t per_position = costs.layers[0].kv_bytes_per_position;
  const CacheShape shape = {.n_ctx = 8192, .n_seqs = 2, .n_batch = 128};
  // A window and the rows of a batch for each, padded.
  EXPECT_EQ(CacheBytes(costs.layers[0], shape), 2 * 768 * per_position);
  EXPECT_EQ(CacheBytes(costs.layers[5], shape), 2 * 8192 * per_position);
}

TEST(LayerCosts, FewCellsAndCheckpointsAreCounted) {
  GgufHeader header = Model("gemma3", 12);
  header.Set("gemma3.attention.sliding_window", GgufValue::U32(512));
  const LayerCosts costs = Count(header);
  const uint64_t per_position = costs.layers[0].kv_bytes_per_position;
  CacheShape shape = {.n_ctx = 8192, .n_seqs = 4, .n_batch = 128, .kv_cells = 10240};
  EXPECT_EQ(CacheBytes(costs.layers[5], shape), 10240 * per_position);
  const uint64_t windows = CacheBytes(costs.layers[0], shape);
  shape.n_checkpoints = 3;
  EXPECT_EQ(CacheBytes(costs.layers[0], shape), windows + 3 * 512 * per_position);
  EXPECT_EQ(CacheBytes(costs.layers[5], shape), 10240 * per_position);
  // Each sequence has its own cache.
  shape.kv_cells = 0;
  shape.n_checkpoints = 0;
  EXPECT_EQ(CacheBytes(costs.layers[0], shape), 4 * 768 * per_position);
  EXPECT_EQ(CacheBytes(costs.layers[5], shape), 4 * 8192 * per_position);
}

TEST(LayerCosts, ScoresAreWrittenDownWithoutFlashAttention) {
  const LayerCosts costs = Count(Model("llama", 2));
  CacheShape shape = {.n_ctx = 1024, .n_seqs = 2, .n_batch = 64};
  const uint64_t with = ComputeBytes(costs, shape, false);
  shape.flash_attention = false;
  EXPECT_EQ(ComputeBytes(costs, shape, false) - with, 2 * 64 * 1024 * 4 * sizeof(float));
  // Rows attend to the cells of all sequences where these are shared.
  shape.kv_cells = 1536;
  shape.flash_attention = true;
  const uint64_t shared = ComputeBytes(costs, shape, false);
  shape.flash_attention = false;
  EXPECT_EQ(ComputeBytes(costs, shape, false) - shared, 2 * 64 * 1536 * 4 * sizeof(float));
}

TEST(LayerCosts, AnUnknownArchitecturesWindowsAreNotTrusted) {
  GgufHeader header = Model("nobodyknows", 4);
  header.Set("nobodyknows.attention.sliding_window", GgufValue::U32(512));
  for (const LayerCost& layer : Count(header).layers) EXPECT_EQ(layer.window, 0);
}

TEST(LayerCosts, TakesHeadCountsByLayer) {
  GgufHeader header = Model("deci", 3);
  header.Set("deci.attention.head_count", testing::U32Array({4, 4, 4}));
  header.Set("deci.attention.head_count_kv", testing::U32Array({4, 0, 1}));
  const LayerCosts costs = Count(header);
  EXPECT_EQ(costs.layers[0].kv_bytes_per_position, 4 * 32 * 2);
  EXPECT_EQ(costs.layers[1].kv_bytes_per_position, 0);
  EXPECT_EQ(costs.layers[2].kv_bytes_per_position, 32 * 2);
}

TEST(LayerCosts, LayersForPredictionAreHeldAndNeverRead) {
  GgufHeader header = Model("glm4moe", 3);
  header.Set("glm4moe.nextn_predict_layers", GgufValue::U32(1));
  const LayerCosts costs = Count(header);
  EXPECT_GT(costs.layers[2].weight_bytes, 0);
  EXPECT_TRUE(costs.layers[2].dense.empty());
  EXPECT_EQ(costs.layers[2].kv_bytes_per_position, 0);
}

TEST(LayerCosts, RefusesAHeaderWithoutTheBasics) {
  for (const char* key : {"general.architecture", "llama.block_count", "llama.embedding_length"}) {
    GgufHeader header = Model("llama", 2);
    header.Erase(key);
    EXPECT_THAT(CountLayerCosts(header, {}), StatusIs(absl::StatusCode::kInvalidArgument)) << key;
  }
}

TEST(LayerCosts, LogitsAreBufferedAtTheEndOnly) {
  const LayerCosts costs = Count(Model("llama", 2));
  const CacheShape shape = {.n_ctx = 1024, .n_seqs = 1, .n_batch = 64};
  EXPECT_EQ(ComputeBytes(costs, shape, true) - ComputeBytes(costs, shape, false),
            2 * 64 * 1000 * sizeof(float));
}

// The embedding is looked up in the machine's memory, and logits are handed over there.
TEST(LayerCosts, ADeviceWithMemoryOfItsOwnHasNotAllOfAStage) {
  const LayerCosts costs = Count(Model("llama", 2));
  const CacheShape shape = {.n_ctx = 1024, .n_seqs = 1, .n_batch = 64};
  const uint64_t logits = 64 * 1000 * sizeof(float);
  const MachineBytes first = MachineBytesOf(costs, shape, {0, 1});
  EXPECT_EQ(first.weights, costs.embedding_bytes);
  EXPECT_GT(first.weights, 0);
  EXPECT_EQ(first.compute, 0);
  const MachineBytes last = MachineBytesOf(costs, shape, {1, 2});
  EXPECT_EQ(last.weights, costs.last_placeholder_bytes);
  EXPECT_GT(last.weights, 0);
  EXPECT_EQ(last.compute, logits);
  LayerCosts tied = costs;
  tied.tied_bytes = costs.embedding_bytes;
  EXPECT_EQ(MachineBytesOf(tied, shape, {0, 1}).weights, 0);
  EXPECT_EQ(MachineBytesOf(tied, shape, {1, 2}).weights, 0);
  EXPECT_EQ(MachineBytesOf(tied, shape, {0, 2}).all(), logits);
}

}  // namespace
}  // namespace strata
