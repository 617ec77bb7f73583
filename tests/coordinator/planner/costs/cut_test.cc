#include "coordinator/planner/costs/cut.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

CutRule RuleFor(const char* architecture, std::vector<uint32_t> cut_points,
                const char* reason = "") {
  CutRule rule;
  rule.architecture = architecture;
  rule.exactness = Exactness::kExact;
  rule.cut_points = std::move(cut_points);
  rule.reason = reason;
  return rule;
}

CutRule Anywhere(uint32_t n_layer) {
  CutRule rule = RuleFor("llama", {});
  for (uint32_t i = 1; i < n_layer; ++i) rule.cut_points.push_back(i);
  return rule;
}

TEST(CutByBytes, GivesEqualLayersEvenly) {
  const LayerBytes bytes{.layers = {10, 10, 10, 10, 10, 10}};
  EXPECT_THAT(*CutByBytes(bytes, Anywhere(6), 3),
              ElementsAre(LayerRange{0, 2}, LayerRange{2, 4}, LayerRange{4, 6}));
}

TEST(CutByBytes, CountsTheVocabularyOnFirstAndLastStage) {
  const LayerBytes bytes{.layers = {10, 10, 10, 10, 10, 10}, .first = 20, .last = 30};
  EXPECT_THAT(*CutByBytes(bytes, Anywhere(6), 2), ElementsAre(LayerRange{0, 3}, LayerRange{3, 6}));
  const LayerBytes heavy_head{.layers = {10, 10, 10, 10}, .first = 0, .last = 40};
  EXPECT_THAT(*CutByBytes(heavy_head, Anywhere(4), 2),
              ElementsAre(LayerRange{0, 3}, LayerRange{3, 4}));
}

TEST(CutByBytes, CutsOnlyWhereTheRuleAllows) {
  const CutRule rule = RuleFor("gemma3", {6});
  const LayerBytes bytes{.layers = std::vector<uint64_t>(10, 1)};
  EXPECT_THAT(*CutByBytes(bytes, rule, 2), ElementsAre(LayerRange{0, 6}, LayerRange{6, 10}));
  EXPECT_THAT(CutByBytes(bytes, rule, 3),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("may be cut at 6")));
}

TEST(CutByBytes, OneStageIsAlwaysPossible) {
  const CutRule rule = RuleFor("t5", {}, "it has an encoder");
  const LayerBytes bytes{.layers = {1, 2}};
  EXPECT_THAT(*CutByBytes(bytes, rule, 1), ElementsAre(LayerRange{0, 2}));
  EXPECT_THAT(CutByBytes(bytes, rule, 2),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("it has an encoder")));
}

TEST(CutByBytes, RefusesMoreStagesThanLayers) {
  const LayerBytes bytes{.layers = {1, 2}};
  EXPECT_THAT(CutByBytes(bytes, Anywhere(2), 3),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 to 2")));
  EXPECT_THAT(CutByBytes(bytes, Anywhere(2), 0), StatusIs(absl::StatusCode::kInvalidArgument));
}

// Largest stage of the best cut, by trying all.
uint64_t BestByForce(const LayerBytes& bytes, const CutRule& rule, uint32_t n_stages) {
  const auto n_layer = static_cast<uint32_t>(bytes.layers.size());
  uint64_t best = UINT64_MAX;
  const size_t n_points = rule.cut_points.size();
  for (uint32_t mask = 0; mask < (1u << n_points); ++mask) {
    std::vector<uint32_t> begins = {0};
    for (size_t i = 0; i < n_points; ++i) {
      if (mask >> i & 1) begins.push_back(rule.cut_points[i]);
    }
    if (begins.size() != n_stages) continue;
    uint64_t largest = 0;
    for (size_t s = 0; s < begins.size(); ++s) {
      const uint32_t end = s + 1 < begins.size() ? begins[s + 1] : n_layer;
      const auto& forbidden = rule.forbidden_sizes;
      if (n_stages > 1 && std::count(forbidden.begin(), forbidden.end(), end - begins[s]) > 0) {
        largest = UINT64_MAX;
        break;
      }
      uint64_t sum = (s == 0 ? bytes.first : 0) + (end == n_layer ? bytes.last : 0);
      for (uint32_t i = begins[s]; i < end; ++i) sum += bytes.layers[i];
      largest = std::max(largest, sum);
    }
    best = std::min(best, largest);
  }
  return best;
}

TEST(CutByBytes, EqualsBruteForceOnRandomModels) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const uint32_t n_layer = 2 + random() % 8;
    LayerBytes bytes;
    for (uint32_t i = 0; i < n_layer; ++i) bytes.layers.push_back(random() % 100);
    bytes.first = random() % 200;
    bytes.last = random() % 200;
    CutRule rule = RuleFor("llama", {});
    for (uint32_t i = 1; i < n_layer; ++i) {
      if (random() % 4 != 0) rule.cut_points.push_back(i);
    }
    if (random() % 3 == 0) rule.forbidden_sizes.push_back(1 + random() % 4);
    const uint32_t n_stages = 1 + random() % (rule.cut_points.size() + 1);
    auto cut = CutByBytes(bytes, rule, n_stages);
    if (BestByForce(bytes, rule, n_stages) == UINT64_MAX) {
      EXPECT_THAT(cut, StatusIs(absl::StatusCode::kFailedPrecondition)) << "seed " << seed;
      continue;
    }
    ASSERT_TRUE(cut.ok()) << "seed " << seed << ": " << cut.status();
    uint64_t largest = 0;
    uint32_t at = 0;
    for (const LayerRange& range : *cut) {
      ASSERT_EQ(range.begin, at) << "seed " << seed;
      at = range.end;
      uint64_t sum = (range.begin == 0 ? bytes.first : 0) + (range.end == n_layer ? bytes.last : 0);
      for (uint32_t i = range.begin; i < range.end; ++i) sum += bytes.layers[i];
      largest = std::max(largest, sum);
    }
    ASSERT_EQ(at, n_layer) << "seed " << seed;
    EXPECT_EQ(largest, BestByForce(bytes, rule, n_stages)) << "seed " << seed;
  }
}

TEST(CutAt, TakesCutsThatRise) {
  EXPECT_THAT(*CutAt(6, Anywhere(6), {2, 5}),
              ElementsAre(LayerRange{0, 2}, LayerRange{2, 5}, LayerRange{5, 6}));
}

TEST(CutAt, RefusesCutsOutsideOrOutOfOrder) {
  for (const std::vector<uint32_t>& cuts : {std::vector<uint32_t>{0}, {6}, {3, 3}, {4, 2}, {100}}) {
    EXPECT_THAT(CutAt(6, Anywhere(6), cuts),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 to 5")));
  }
}

TEST(CutAt, SaysWhereTheArchitectureMayBeCut) {
  const CutRule rule = RuleFor("gemma3", {6, 12}, "every 6th layer is global");
  EXPECT_THAT(CutAt(18, rule, {7}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("cut 7: gemma3 may be cut at 6, 12 (every 6th layer is global)")));
}

TEST(CutAt, RefusesAStageOfAForbiddenSize) {
  CutRule rule = Anywhere(10);
  rule.forbidden_sizes = {4};
  EXPECT_THAT(CutAt(10, rule, {4}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("layers 0-3 are 4")));
  EXPECT_TRUE(CutAt(10, rule, {5}).ok());
  // The whole model is what libllama takes it for.
  EXPECT_TRUE(CutAt(4, rule, {}).ok());
}

TEST(CountLayerBytes, CountsATiedEmbeddingOnBothEnds) {
  GgufHeader header;
  header.Set("general.architecture", GgufValue::String("llama"));
  header.Set("llama.block_count", GgufValue::U32(2));
  header.tensors = {{.name = "token_embd.weight", .bytes = 100},
                    {.name = "blk.0.attn_q.weight", .bytes = 10},
                    {.name = "blk.1.attn_q.weight", .bytes = 20},
                    {.name = "blk.1.ffn_up.weight", .bytes = 5},
                    {.name = "output_norm.weight", .bytes = 3}};
  LayerBytes bytes = CountLayerBytes(header);
  EXPECT_THAT(bytes.layers, ElementsAre(10, 25));
  EXPECT_EQ(bytes.first, 100);
  EXPECT_EQ(bytes.last, 103);
  header.tensors.push_back({.name = "output.weight", .bytes = 70});
  EXPECT_EQ(CountLayerBytes(header).last, 73);
}

}  // namespace
}  // namespace strata
