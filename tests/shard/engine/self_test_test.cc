#include "shard/engine/self_test.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/engine/stage.h"
#include "shard/model/model_file.h"
#include "tests/shard/engine/stage_chain.h"
#include "tests/shard/serving/stage_server_fixture.h"
#include "tests/support/model_zoo.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::SizeIs;

wire::StageSpec SpecOf(LayerRange layers) {
  wire::StageSpec spec;
  spec.set_model_id("the model");
  spec.mutable_layers()->set_begin(layers.begin);
  spec.mutable_layers()->set_end(layers.end);
  spec.set_n_ctx(128);
  spec.set_n_seq_max(4);
  return spec;
}

wire::SelfTest TestOf(Stage* stage) { return RunSelfTest(SpecOf(stage->facts().layers), stage); }

wire::SelfTest TestAnew(const std::shared_ptr<const ModelFile>& model, LayerRange layers) {
  return TestOf(LoadStage(model, layers, Options()).get());
}

TEST(SelfTest, RepeatsItself) {
  for (const auto& spec : {Llama(), Mamba(), Windowed(), TwoRanges()}) {
    const auto model = OpenModel(spec);
    const uint32_t n = model->n_layer();
    for (const LayerRange layers : {LayerRange{0, 1}, {1, 3}, {3, n}, {0, n}}) {
      const auto stage = LoadStage(model, layers, Options());
      const wire::SelfTest first = TestOf(stage.get());
      EXPECT_THAT(first.points(), Not(IsEmpty())) << first.why_not_run();
      EXPECT_THAT(first.fault(), IsEmpty());
      EXPECT_EQ(TestOf(stage.get()).SerializeAsString(), first.SerializeAsString()) << spec.name;
      EXPECT_EQ(TestAnew(model, layers).SerializeAsString(), first.SerializeAsString())
          << spec.name;
    }
  }
}

// A first, a middle and a last stage of every kind of cache continue as if they had run nothing,
// before a sequence and in the middle of one.
TEST(SelfTest, LeavesNothingBehind) {
  for (const auto& spec : {Llama(), Mamba(), Windowed(), TwoRanges()}) {
    const auto model = OpenModel(spec);
    const std::vector<uint32_t> cuts = {0, 1, 3, model->n_layer()};
    Chain untested(model, cuts, Options());
    Chain tested(model, cuts, Options());
    for (const Rows& rows : {Prompt(0, 0, 20) + Prompt(2, 0, 7), Prompt(0, 20, 1)}) {
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const auto before = tested.stage(i).SlotStateOf(0);
        ASSERT_THAT(TestOf(&tested.stage(i)).points(), Not(IsEmpty()));
        EXPECT_EQ(tested.stage(i).SlotStateOf(0), before);
        EXPECT_EQ(tested.stage(i).SlotStateOf(1).positions, 0u);
      }
      const auto right = untested.Decode(rows);
      const auto got = tested.Decode(rows);
      ASSERT_TRUE(right.ok()) << right.status();
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(*got, *right) << spec.name;
    }
  }
}

// Results by their layers.
std::map<std::string, std::string> ByLayers(const wire::SelfTest& test) {
  std::map<std::string, std::string> hashes;
  for (const wire::SelfTestPoint& point : test.points()) {
    hashes[absl::StrCat(point.layers().begin(), "-", point.layers().end(),
                        point.logits() ? " and head" : "")] = point.hash();
  }
  return hashes;
}

TEST(SelfTest, ALayerGivesTheSameInEveryStage) {
  for (const auto& spec : {Llama(), Mamba(), TwoRanges()}) {
    const auto model = OpenModel(spec);
    const uint32_t n = model->n_layer();
    const auto whole = ByLayers(TestAnew(model, {0, n}));
    EXPECT_THAT(whole, SizeIs(n));
    for (const LayerRange layers : {LayerRange{0, 1}, {0, 3}, {1, 3}, {2, n}, {n - 1, n}}) {
      const auto part = ByLayers(TestAnew(model, layers));
      EXPECT_THAT(part, SizeIs(layers.size()));
      EXPECT_THAT(whole, IsSupersetOf(part)) << layers.begin << "-" << layers.end;
    }
  }
}

// Bytes of one tensor change in a copy of the file, which has the same header.
std::shared_ptr<const ModelFile> WithChangedTensor(const ModelFile& model, absl::string_view name) {
  const std::string path = testing::ProcessTempFolder() + "/changed.gguf";
  std::filesystem::copy_file(model.paths().front(), path,
                             std::filesystem::copy_options::overwrite_existing);
  const GgufTensor* const tensor = model.header().FindTensor(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(model.header().data_offset + tensor->offset));
  std::vector<float> values(tensor->bytes / sizeof(float));
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(tensor->bytes));
  std::swap(values.front(), values.back());
  for (size_t i = 1; i < values.size(); i += 2) values[i] = -values[i];
  file.seekp(static_cast<std::streamoff>(model.header().data_offset + tensor->offset));
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(tensor->bytes));
  file.close();
  auto changed = ModelFile::Open(path);
  EXPECT_TRUE(changed.ok()) << changed.status();
  return *changed;
}

TEST(SelfTest, OneChangedTensorGivesAnotherResultOfItsLayerAlone) {
  const auto model = OpenModel(Llama());
  const auto changed = WithChangedTensor(*model, "blk.2.ffn_down.weight");
  for (const LayerRange layers : {LayerRange{0, 3}, {1, 5}, {2, 3}, {0, 6}, {3, 6}}) {
    const auto right = ByLayers(TestAnew(model, layers)),
               wrong = ByLayers(TestAnew(changed, layers));
    ASSERT_EQ(right.size(), wrong.size());
    for (const auto& [of, hash] : right) EXPECT_EQ(wrong.at(of) == hash, of != "2-3") << of;
  }
}

TEST(SelfTest, OutputThatIsNoNumberIsAFault) {
  const auto model = OpenModel(Llama());
  const std::string path = testing::ProcessTempFolder() + "/nan.gguf";
  std::filesystem::copy_file(model->paths().front(), path);
  const GgufTensor* const tensor = model->header().FindTensor("blk.1.attn_norm.weight");
  ASSERT_NE(tensor, nullptr);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(model->header().data_offset + tensor->offset));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  file.write(reinterpret_cast<const char*>(&nan), sizeof nan);
  file.close();
  const auto damaged = ModelFile::Open(path);
  ASSERT_TRUE(damaged.ok()) << damaged.status();
  EXPECT_THAT(TestAnew(*damaged, {0, 3}).fault(), HasSubstr("layer 1 gives"));
  EXPECT_THAT(TestAnew(*damaged, {1, 6}).fault(), HasSubstr("layer 1 gives"));
  EXPECT_THAT(TestAnew(*damaged, {2, 6}).fault(), IsEmpty());
}

class RefusingStage final : public StageWithoutCaches {
 public:
  RefusingStage() {
    facts_.n_embd = 4;
    facts_.n_ctx = facts_.n_batch = 64;
  }
  absl::Status Decode(const Batch&) override { return absl::InternalError("it is not called"); }
  absl::StatusOr<std::vector<float>> DecodeApart(const Batch&, const LayerWatch&) override {
    return absl::UnimplementedError("not so");
  }
  Payload TakeActivations() override { return {}; }
  absl::Span<const float> Logits(size_t) override { return {}; }
  absl::Status Apply(const wire::KvEdit&) override { return absl::OkStatus(); }
  const llama_vocab* vocab() const override { return nullptr; }
  const Facts& facts() const override { return facts_; }

 private:
  Facts facts_;
};

TEST(SelfTest, AStageThatCannotComputeTheInputReportsIt) {
  RefusingStage stage;
  const wire::SelfTest test = TestOf(&stage);
  EXPECT_EQ(test.why_not_run(), "not so");
  EXPECT_THAT(test.points(), IsEmpty());
  EXPECT_THAT(test.fault(), IsEmpty());
}

TEST(SelfTest, TakesNoMoreRowsThanTheStage) {
  const auto model = OpenModel(Llama());
  StageOptions options = Options(/*n_seq_max=*/1);
  options.n_batch = 3;
  const auto stage = LoadStage(model, {0, 2}, options);
  const wire::SelfTest test = TestOf(stage.get());
  ASSERT_THAT(test.points(), SizeIs(2)) << test.why_not_run();
  EXPECT_THAT(test.points(0).norm(), SizeIs(3));
}

class SelfTestOf : public ::testing::TestWithParam<testing::ZooModel> {};

TEST_P(SelfTestOf, EveryStageGivesNumbers) {
  const auto model = OpenModel(testing::SpecOf(GetParam()));
  const auto rule = CutRuleFor(model->header(), /*unverified=*/false);
  ASSERT_TRUE(rule.ok()) << rule.status();
  std::vector<LayerRange> stages = {{0, model->n_layer()}};
  if (!rule->cut_points.empty()) {
    const uint32_t cut = rule->cut_points[rule->cut_points.size() / 2];
    stages.push_back({0, cut});
    stages.push_back({cut, model->n_layer()});
  }
  for (const LayerRange layers : stages) {
    const auto stage = TryLoad(model, layers, Options());
    if (!stage.ok() && layers.size() != model->n_layer()) continue;  // a size that is forbidden
    ASSERT_TRUE(stage.ok()) << stage.status();
    const wire::SelfTest test = TestOf(stage->get());
    EXPECT_THAT(test.why_not_run(), IsEmpty()) << layers.begin << "-" << layers.end;
    EXPECT_THAT(test.fault(), IsEmpty()) << layers.begin << "-" << layers.end;
    EXPECT_THAT(test.points(), Not(IsEmpty()));
    EXPECT_EQ(TestOf(stage->get()).SerializeAsString(), test.SerializeAsString());
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, SelfTestOf, ::testing::ValuesIn(testing::ModelZoo()),
                         [](const auto& info) { return info.param.name; });

double ShareApart(const wire::SelfTestPoint& a, const wire::SelfTestPoint& b) {
  double square = 0;
  for (int i = 0; i < a.sketch_size(); ++i) {
    square += std::pow(a.sketch(i) - b.sketch(i), 2) / kSelfTestProjections;
  }
  return std::sqrt(square) / a.norm(0);
}

TEST(SketchOf, EstimatesHowFarRowsAreApart) {
  std::vector<float> a(4096), b(4096);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = std::sin(static_cast<float>(i * i));
    b[i] = a[i] + 0.01f * std::cos(static_cast<float>(3 * i * i));
  }
  const double share = ShareApart(SketchOf(a, {}, 1), SketchOf(b, {}, 1));
  EXPECT_GT(share, 0.003);
  EXPECT_LT(share, 0.03);
}

TEST(SketchOf, IsOfTheDifferenceToTheInput) {
  std::vector<float> input(512, 100.0f), a = input, b = input;
  for (size_t i = 0; i < a.size(); ++i) a[i] += 1 + 0.1f * static_cast<float>(i % 3);
  b = a;
  b[17] += 40;
  EXPECT_GT(ShareApart(SketchOf(a, input, 1), SketchOf(b, input, 1)), 0.5);
  EXPECT_LT(ShareApart(SketchOf(a, {}, 1), SketchOf(b, {}, 1)), 0.1);
}

TEST(SketchOf, MaskedLogitsCountAsNothing) {
  const std::vector<float> a = {1, 2, -std::numeric_limits<float>::max()};
  const std::vector<float> b = {1, 2, -std::numeric_limits<float>::infinity()};
  const wire::SelfTestPoint of_a = SketchOf(a, {}, 1), of_b = SketchOf(b, {}, 1);
  EXPECT_EQ(ShareApart(of_a, of_b), 0);
  EXPECT_TRUE(std::isfinite(of_a.norm(0)));
}

}  // namespace
}  // namespace strata
