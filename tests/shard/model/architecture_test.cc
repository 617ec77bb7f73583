#include "shard/model/architecture.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gguf_values.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

GgufHeader Header(const std::string& architecture, uint32_t n_layer) {
  GgufHeader header;
  header.Set("general.architecture", GgufValue::String(architecture));
  header.Set(architecture + ".block_count", GgufValue::U32(n_layer));
  return header;
}

CutRule RuleOf(const GgufHeader& header, bool unverified = false) {
  auto rule = CutRuleFor(header, unverified);
  EXPECT_THAT(rule, IsOk());
  return rule.ok() ? *rule : CutRule();
}

TEST(CutRuleFor, LetsLlamaBeCutAnywhere) {
  const CutRule rule = RuleOf(Header("llama", 4));
  EXPECT_EQ(rule.exactness, Exactness::kExact);
  EXPECT_THAT(rule.cut_points, ElementsAre(1, 2, 3));
}

TEST(CutRuleFor, RefusesUnknownArchitectures) {
  EXPECT_THAT(CutRuleFor(Header("frobnicator", 4), /*unverified=*/false),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("frobnicator"), HasSubstr("--unverified"))));
  EXPECT_THAT(RuleOf(Header("frobnicator", 4), /*unverified=*/true).cut_points,
              ElementsAre(1, 2, 3));
}

TEST(CutRuleFor, RefusesAHeaderWithoutArchitectureOrLayers) {
  EXPECT_THAT(CutRuleFor(GgufHeader(), false), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CutRuleFor(Header("llama", 0), false), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CutRuleFor, ARefusedRowHasAReasonAndNoCuts) {
  size_t refused = 0;
  for (const std::string& name : KnownArchitectures()) {
    const GgufHeader header = Header(name, 8);
    const CutRule rule = RuleOf(header);
    if (rule.exactness != Exactness::kRefused) continue;
    ++refused;
    EXPECT_THAT(rule.cut_points, IsEmpty()) << name;
    EXPECT_THAT(rule.reason, Not(IsEmpty())) << name;
    GgufHeader slice = header;
    EXPECT_THAT(AdjustMetadata(header, {0, 4}, /*unverified=*/false, &slice), Not(IsOk())) << name;
  }
  EXPECT_GE(refused, 5);
}

TEST(CutRuleFor, Exaone4OfSixtyFourLayersIsRefusedAndNoSliceMayHaveSoMany) {
  EXPECT_EQ(RuleOf(Header("exaone4", 64)).exactness, Exactness::kRefused);
  const GgufHeader longer = Header("exaone4", 80);
  EXPECT_THAT(RuleOf(longer).forbidden_sizes, ElementsAre(64));
  GgufHeader slice = longer;
  EXPECT_THAT(AdjustMetadata(longer, {0, 64}, false, &slice),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  slice = longer;
  EXPECT_THAT(AdjustMetadata(longer, {0, 63}, false, &slice), IsOk());
}

TEST(CutRuleFor, CommandROfSixtyFourLayersIsRefusedWhereItHasNorms) {
  GgufHeader header = Header("command-r", 64);
  EXPECT_EQ(RuleOf(header).exactness, Exactness::kExact);
  header.tensors.push_back({.name = "blk.0.attn_q_norm.weight"});
  EXPECT_EQ(RuleOf(header).exactness, Exactness::kRefused);
}

TEST(CutRuleFor, EveryStageHasAWindowedLayerWhereTheModelHasWindows) {
  GgufHeader header = Header("gemma3", 8);
  EXPECT_THAT(RuleOf(header).cut_points, ElementsAre(1, 2, 3, 4, 5, 6, 7));
  header.Set("gemma3.attention.sliding_window", GgufValue::U32(512));
  EXPECT_THAT(RuleOf(header).cut_points, ElementsAre(1, 2, 3, 4, 6, 7));
}

TEST(CacheAbilityFor, WindowsCannotBeShiftedOrCopied) {
  GgufHeader header = Header("gemma3", 8);
  EXPECT_TRUE(CacheAbilityFor(header).shift);
  EXPECT_TRUE(CacheAbilityFor(header).copy);
  header.Set("gemma3.attention.sliding_window", GgufValue::U32(512));
  EXPECT_FALSE(CacheAbilityFor(header).shift);
  EXPECT_FALSE(CacheAbilityFor(header).copy);
  EXPECT_TRUE(CacheAbilityFor(header).trim);
}

TEST(CutRuleFor, LayersForMultiTokenPredictionStayInTheLastStage) {
  GgufHeader header = Header("glm4moe", 7);
  header.Set("glm4moe.nextn_predict_layers", GgufValue::U32(1));
  EXPECT_THAT(RuleOf(header).cut_points, ElementsAre(1, 2, 3, 4, 5));
  GgufHeader slice = header;
  ASSERT_THAT(AdjustMetadata(header, {3, 7}, false, &slice), IsOk());
  EXPECT_EQ(slice.GetInteger("glm4moe.block_count"), 4);
  EXPECT_EQ(slice.GetInteger("glm4moe.nextn_predict_layers"), 1);
  slice = header;
  ASSERT_THAT(AdjustMetadata(header, {0, 3}, false, &slice), IsOk());
  EXPECT_EQ(slice.GetInteger("glm4moe.block_count"), 3);
  EXPECT_EQ(slice.GetInteger("glm4moe.nextn_predict_layers"), 0);
  slice = header;
  EXPECT_THAT(AdjustMetadata(header, {0, 6}, false, &slice),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(CutRuleFor, LayersForMultiTokenPredictionAreRefusedWhereUntested) {
  GgufHeader header = Header("llama", 7);
  header.Set("llama.nextn_predict_layers", GgufValue::U32(1));
  EXPECT_EQ(RuleOf(header).exactness, Exactness::kRefused);
  EXPECT_THAT(RuleOf(header).reason, HasSubstr("nextn_predict_layers"));
  header.Set("llama.nextn_predict_layers", GgufValue::U32(0));
  EXPECT_EQ(RuleOf(header).exactness, Exactness::kExact);
  header.Set("llama.nextn_predict_layers", GgufValue::U32(7));
  EXPECT_THAT(CutRuleFor(header, false), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CutRuleFor, GemmaIsScaledByItsBlockCount) {
  for (const auto& [name, special] :
       {std::pair<std::string, uint32_t>{"gemma2", 46}, {"gemma3", 62}}) {
    for (const uint32_t n_layer : {special, special + 6}) {
      GgufHeader header = Header(name, n_layer);
      header.Set(name + ".attention.head_count", GgufValue::U32(32));
      header.Set(name + ".embedding_length", GgufValue::U32(5376));
      header.Set(name + ".attention.key_length", GgufValue::U32(128));
      const CutRule rule = RuleOf(header);
      if (n_layer == special) {
        EXPECT_EQ(rule.exactness, Exactness::kTolerance) << name;
      } else {
        EXPECT_EQ(rule.exactness, Exactness::kExact) << name;
        EXPECT_THAT(rule.forbidden_sizes, ElementsAre(special)) << name;
      }
    }
  }
}

TEST(CutRuleFor, DeepseekOfCertainSizesIsTakenForALiteModel) {
  GgufHeader header = Header("deepseek2", 61);
  header.Set("deepseek2.attention.q_lora_rank", GgufValue::U32(1536));
  EXPECT_THAT(RuleOf(header).forbidden_sizes, ElementsAre(26, 27));
  header.Set("deepseek2.vocab_size", GgufValue::U32(128256));
  EXPECT_THAT(RuleOf(header).forbidden_sizes, ElementsAre(26, 27, 48));
}

TEST(AdjustMetadata, CutsTheBlockCountAndPerLayerArrays) {
  GgufHeader whole = Header("llama", 4);
  whole.Set("llama.attention.head_count", testing::U32Array({1, 2, 3, 4}));
  GgufHeader slice = whole;
  ASSERT_THAT(AdjustMetadata(whole, {1, 3}, false, &slice), IsOk());
  EXPECT_EQ(slice.GetInteger("llama.block_count"), 2);
  EXPECT_EQ(slice.Find("llama.attention.head_count")->count, 2);
  EXPECT_EQ(slice.GetIntegerOfLayer("llama.attention.head_count", 0), 2);
  EXPECT_EQ(slice.GetIntegerOfLayer("llama.attention.head_count", 1), 3);
}

TEST(AdjustMetadata, CutsTheLeadingDenseLayers) {
  GgufHeader whole = Header("deepseek2", 8);
  whole.Set("deepseek2.leading_dense_block_count", GgufValue::U32(3));
  for (const auto& [range, left] :
       {std::pair<LayerRange, uint64_t>{{0, 2}, 2}, {{2, 5}, 1}, {{5, 8}, 0}}) {
    GgufHeader slice = whole;
    ASSERT_THAT(AdjustMetadata(whole, range, false, &slice), IsOk());
    EXPECT_LE(slice.GetInteger("deepseek2.leading_dense_block_count"), std::max<uint64_t>(left, 3));
    EXPECT_GE(slice.GetInteger("deepseek2.leading_dense_block_count"), left);
  }
}

TEST(CacheAbilityFor, StatesCannotBeTrimmed) {
  EXPECT_TRUE(CacheAbilityFor(Header("llama", 4)).trim);
  EXPECT_TRUE(CacheAbilityFor(Header("llama", 4)).shift);
  EXPECT_FALSE(CacheAbilityFor(Header("mamba2", 4)).trim);
  EXPECT_FALSE(CacheAbilityFor(Header("frobnicator", 4)).copy);
}

TEST(CacheAbilityFor, PositionsOfSeveralAxesCannotBeShifted) {
  GgufHeader header = Header("qwen2vl", 4);
  header.Set("qwen2vl.rope.dimension_sections", GgufValue::U32(0));
  EXPECT_FALSE(CacheAbilityFor(header).shift);
}

// ARCHITECTURES.md agrees with each row of the table.
TEST(ArchitecturesPage, NamesEveryRowAndItsResult) {
  std::ifstream in(ARCHITECTURES_PAGE);
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::string> rows;
  for (const auto line : absl::StrSplit(page, '\n')) {
    if (line.substr(0, 3) == "| `") rows.emplace_back(line);
  }
  for (const std::string& name : KnownArchitectures()) {
    const bool refused = RuleOf(Header(name, 8)).exactness == Exactness::kRefused;
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const std::string& r) {
      return r.find(absl::StrCat("| `", name, "` |")) == 0;
    });
    ASSERT_NE(row, rows.end()) << name << " is not on the page";
    EXPECT_EQ(row->find("refused") != std::string::npos, refused) << *row;
  }
}

}  // namespace
}  // namespace strata
