// Stages whose layers are on a second device and whose experts are in the host's memory: the logits
// are libllama's on the CPU, within the differences of the devices' arithmetic
// (second_device_test).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/device/engine.h"
#include "shard/engine/stage.h"
#include "shard/model/architecture.h"
#include "shard/model/experts.h"
#include "shard/model/model_file.h"
#include "shard/model/slice.h"
#include "tests/support/model_zoo.h"
#include "tests/support/random_model.h"
#include "tests/support/second_device.h"
#include "tests/support/stage_chain.h"
#include "tests/support/temp_folder.h"
#include "tests/support/whole_model.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using testing::BatchRow;
using testing::DecodeThrough;
using ::testing::HasSubstr;
using testing::WholeModel;

// The device's most exact settings: otherwise Vulkan's kernels round activations to 8 or 16 bits,
// which in a random model hides all other differences.
bool Prepare() {
  testing::ShowSoftwareDevices();
  for (const char* less : {"GGML_VK_DISABLE_INTEGER_DOT_PRODUCT", "GGML_VK_DISABLE_F16",
                           "GGML_VK_DISABLE_COOPMAT", "GGML_VK_DISABLE_COOPMAT2"}) {
    setenv(less, "1", /*overwrite=*/0);
  }
  return true;
}
const bool prepared = Prepare();

constexpr uint64_t kRounding = 32 << 10;  // libllama reports hundredths of a MiB for each buffer
constexpr uint64_t kEmbeddingBytes = 64 << 10;
constexpr int32_t kPrompt = 33;
constexpr int32_t kDecodes = 12;
// Of the largest logit; 0.0025 was measured.
constexpr double kLargestShare = 0.01;

class CpuMoeTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    StartEngine();
    second_ = testing::SecondDevice();
    if (second_.empty()) GTEST_SKIP() << testing::kNoSecondDevice;
    for (const testing::ZooModel& model : testing::ModelZoo()) {
      if (model.name != GetParam()) continue;
      testing::RandomModelSpec spec = testing::SpecOf(model);
      for (auto& [key, value] : spec.metadata) {
        if (key == "expert_used_count") value = uint32_t{4};  // all: none is chosen by a rounding
      }
      auto path = testing::WriteRandomModel(spec, testing::ProcessTempFolder());
      ASSERT_TRUE(path.ok()) << path.status();
      path_ = *std::move(path);
    }
    ASSERT_FALSE(path_.empty());
    auto file = ModelFile::Open(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
  }

  StageOptions Options(uint32_t n_cpu_moe) const {
    StageOptions options;
    options.n_ctx = 64;
    options.n_batch = 64;
    options.device = second_;
    options.n_cpu_moe = n_cpu_moe;
    return options;
  }

  std::string second_, path_;
  std::shared_ptr<const ModelFile> file_;  // shared with slices
};

TEST_P(CpuMoeTest, GivesTheLogitsOfTheCpu) {
  auto whole = WholeModel::Open(path_, {.n_ctx = 64, .n_seq_max = 1});
  ASSERT_TRUE(whole.ok()) << whole.status();
  struct Part {
    LayerRange layers;
    uint32_t n_cpu_moe;
  };
  const uint32_t n = file_->n_layer();
  const auto rule = CutRuleFor(file_->header(), false);
  ASSERT_TRUE(rule.ok() && !rule->cut_points.empty()) << rule.status();
  const uint32_t cut = rule->cut_points[rule->cut_points.size() / 2];
  for (const std::vector<Part>& parts :
       {std::vector<Part>{{{0, n}, n}}, {{{0, n}, n / 2}}, {{{0, cut}, 1000}, {{cut, n}, 1000}}}) {
    std::vector<std::unique_ptr<Stage>> stages;
    std::vector<Stage*> chain;
    for (const Part& part : parts) {
      auto slice = Slice::Make(file_, part.layers, {});
      ASSERT_TRUE(slice.ok()) << slice.status();
      auto stage = Stage::Load(*slice, Options(part.n_cpu_moe), nullptr);
      ASSERT_TRUE(stage.ok()) << stage.status();
      // As libllama reports the weights' place; it keeps the embedding there, too.
      const uint64_t experts =
          ExpertBytes(slice->header(), {0, std::min(part.n_cpu_moe, part.layers.size())});
      EXPECT_GT(experts, 0u);
      EXPECT_GT((*stage)->facts().host_bytes + kRounding, experts);
      EXPECT_LT((*stage)->facts().host_bytes, experts + kEmbeddingBytes + kRounding);
      stages.push_back(*std::move(stage));
      chain.push_back(stages.back().get());
    }
    (*whole)->Drop(0);
    double largest = 0, size = 0;
    std::vector<BatchRow> rows;
    for (int32_t i = 0; i < kPrompt; ++i) {
      rows.push_back({.token = 3 + (7 * i) % 80, .position = i, .wants_logits = i + 1 == kPrompt});
    }
    for (int32_t position = kPrompt; position < kPrompt + kDecodes; ++position) {
      const auto right = (*whole)->Decode(rows);
      ASSERT_TRUE(right.ok()) << right.status();
      const auto other = DecodeThrough(chain, rows);
      ASSERT_TRUE(other.ok()) << other.status();
      ASSERT_EQ(right->size(), other->size());
      for (size_t i = 0; i < right->size(); ++i) {
        largest = std::max(largest, std::abs(double{(*right)[i]} - double{(*other)[i]}));
        size = std::max(size, std::abs(double{(*right)[i]}));
      }
      rows = {{.token = 3 + (5 * position) % 80, .position = position, .wants_logits = true}};
    }
    printf("%s in %zu: the largest difference is %.2g, of logits up to %.2g\n", GetParam().c_str(),
           parts.size(), largest, size);
    EXPECT_LT(largest, kLargestShare * size);
  }
}

TEST_P(CpuMoeTest, TheDeviceNeedsRoomForTheOtherWeightsOnly) {
  auto slice = Slice::Make(file_, {0, file_->n_layer()}, {});
  ASSERT_TRUE(slice.ok()) << slice.status();
  auto all = Stage::Load(*slice, Options(0), nullptr);
  ASSERT_TRUE(all.ok()) << all.status();
  const Stage::Facts with = (*all)->facts();
  EXPECT_LT(with.host_bytes, kEmbeddingBytes + kRounding);
  all->reset();

  StageOptions options = Options(1000);
  auto rest = Stage::Load(*slice, options, nullptr);
  ASSERT_TRUE(rest.ok()) << rest.status();
  const Stage::Facts facts = (*rest)->facts();
  rest->reset();
  const uint64_t experts = ExpertBytes(slice->header(), {0, file_->n_layer()});
  const uint64_t needed = facts.slice_bytes - experts + facts.kv_bytes + facts.compute_bytes;
  options.memory_bytes_max = needed;
  EXPECT_TRUE(Stage::Load(*slice, options, nullptr).ok());
  options.memory_bytes_max = needed - 1;
  EXPECT_THAT(Stage::Load(*slice, options, nullptr),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(second_)));

  options.memory_bytes_max = 0;
  options.host_bytes_max = experts - 1;
  const auto refused = Stage::Load(*slice, options, nullptr);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("on CPU")));
  const auto shortage = ShortageOf(refused.status());
  ASSERT_TRUE(shortage.has_value());
  EXPECT_TRUE(shortage->on_host);
  EXPECT_EQ(shortage->needed_bytes, experts);
  EXPECT_EQ(shortage->free_bytes, experts - 1);
}

INSTANTIATE_TEST_SUITE_P(Models, CpuMoeTest,
                         ::testing::Values("llama_experts", "qwen3moe", "gpt_oss", "glm4moe"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace strata
