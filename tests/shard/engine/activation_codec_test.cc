#include "shard/engine/activation_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/device/engine.h"
#include "tests/support/activation_errors.h"
#include "tests/support/model_zoo.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

constexpr wire::ActivationType kAll[] = {wire::F32, wire::F16, wire::BF16, wire::Q8_0};
constexpr uint32_t kWidth = 64;

std::vector<float> Values(size_t n, double scale = 1) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, static_cast<float>(scale));
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<float> There(wire::ActivationType type, const std::vector<float>& values,
                         wire::ActivationType* sent_as) {
  const EncodedActivations sent = EncodeActivations(type, Payload::Own(values));
  *sent_as = sent.type;
  EXPECT_EQ(sent.payload.size(), values.size() / kWidth * ActivationRowBytes(sent.type, kWidth));
  std::vector<float> scratch;
  const auto read = DecodeActivations(sent.type, sent.payload, &scratch);
  return {read.begin(), read.end()};
}

TEST(ActivationCodec, TypesHaveTheirSizes) {
  EXPECT_EQ(ActivationRowBytes(wire::F32, 64), 256u);
  EXPECT_EQ(ActivationRowBytes(wire::F16, 64), 128u);
  EXPECT_EQ(ActivationRowBytes(wire::BF16, 64), 128u);
  EXPECT_EQ(ActivationRowBytes(wire::Q8_0, 64), 68u);
  EXPECT_EQ(ActivationRowBytes(wire::Q8_0, 48), 0u);
  EXPECT_EQ(ActivationRowBytes(static_cast<wire::ActivationType>(9), 64), 0u);
  EXPECT_EQ(ActivationRowBytes(wire::F32, UINT32_MAX), 4ull * UINT32_MAX);
}

TEST(ActivationCodec, OnlyTypeNamesParse) {
  for (const wire::ActivationType type : kAll) {
    EXPECT_EQ(ActivationTypeOf(ActivationTypeName(type)), type);
  }
  for (const char* const name : {"", "F16", "q4_0", "auto", "unknown"}) {
    EXPECT_EQ(ActivationTypeOf(name), std::nullopt) << name;
  }
  EXPECT_EQ(ActivationTypeName(static_cast<wire::ActivationType>(9)), "unknown");
}

TEST(ActivationCodec, F32IsNotEvenCopied) {
  const Payload payload = Payload::Own(Values(3 * kWidth));
  const EncodedActivations sent = EncodeActivations(wire::F32, payload);
  EXPECT_EQ(sent.payload.data(), payload.data());
  std::vector<float> scratch;
  EXPECT_EQ(DecodeActivations(wire::F32, sent.payload, &scratch).data(), payload.floats().data());
  EXPECT_TRUE(scratch.empty());
}

// Half of f16's smallest step.
constexpr double kF16Least = 3e-8;

TEST(ActivationCodec, FloatsAreRounded) {
  for (const double scale : {1e-3, 1.0, 300.0}) {
    const std::vector<float> values = Values(5 * kWidth, scale);
    for (const auto& [type, error] : {std::pair(wire::F16, 0x1p-11), {wire::BF16, 0x1p-8}}) {
      wire::ActivationType sent_as;
      const std::vector<float> back = There(type, values, &sent_as);
      EXPECT_EQ(sent_as, type);
      ASSERT_EQ(back.size(), values.size());
      EXPECT_NE(back, values) << "nothing was changed at all";
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(back[i], values[i], error * std::abs(values[i]) + kF16Least)
            << ActivationTypeName(type) << " " << i;
      }
    }
  }
}

// Within half of a 127th of their block's largest, plus the rounding of the scale, an f16.
TEST(ActivationCodec, BlocksAreRoundedToStepsOfTheirLargest) {
  for (const double scale : {1e-3, 1.0, 300.0}) {
    const std::vector<float> values = Values(5 * kWidth, scale);
    wire::ActivationType sent_as;
    const std::vector<float> back = There(wire::Q8_0, values, &sent_as);
    EXPECT_EQ(sent_as, wire::Q8_0);
    ASSERT_EQ(back.size(), values.size());
    EXPECT_NE(back, values);
    for (size_t i = 0; i < values.size(); ++i) {
      double largest = 0;
      for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) {
        largest = std::max(largest, std::abs(double{values[j]}));
      }
      EXPECT_NEAR(back[i], values[i], 0.501 * largest / 127 + largest / 2048 + 127 * kF16Least)
          << i;
    }
  }
}

TEST(ActivationCodec, ValuesThatATypeCannotHoldAreSentAsF32) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::pair<float, bool> cases[] = {
      {65504.0f, true}, {-65504.0f, true},   {65505.0f, false},
      {1e30f, false},   {-kInfinity, false}, {std::nanf(""), false},
  };
  for (const auto& [value, f16_holds] : cases) {
    std::vector<float> values = Values(2 * kWidth);
    values[kWidth + 3] = value;
    for (const wire::ActivationType type : {wire::F16, wire::BF16, wire::Q8_0}) {
      wire::ActivationType sent_as;
      const std::vector<float> back = There(type, values, &sent_as);
      const bool finite = std::isfinite(value);
      const bool holds = type == wire::F16    ? f16_holds
                         : type == wire::BF16 ? finite
                                              : finite && std::abs(value) < 1e6f;
      EXPECT_EQ(sent_as, holds ? type : wire::F32) << ActivationTypeName(type) << " " << value;
      if (!holds) {
        EXPECT_EQ(std::memcmp(back.data(), values.data(), values.size() * sizeof(float)), 0);
      }
      for (size_t i = 0; holds && i < back.size(); ++i) EXPECT_TRUE(std::isfinite(back[i]));
    }
  }
}

TEST(ActivationCodec, NoRowsAreNoRows) {
  for (const wire::ActivationType type : kAll) {
    EXPECT_TRUE(EncodeActivations(type, Payload()).payload.empty());
  }
}

TEST(ActivationCodec, AnyBytesAreSomeValues) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const wire::ActivationType type = kAll[random() % 4];
    const size_t rows = random() % 4;
    std::string bytes(rows * ActivationRowBytes(type, kWidth), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    std::vector<float> scratch(random() % 3000, 1.0f);
    const Payload payload = Payload::Own(bytes);
    const auto values = DecodeActivations(type, payload, &scratch);
    ASSERT_EQ(values.size(), rows * kWidth);
    // Reads all values, which the address sanitizer checks.
    const auto numbers =
        std::count_if(values.begin(), values.end(), [](float value) { return !std::isnan(value); });
    ASSERT_LE(static_cast<size_t>(numbers), values.size());
  }
}

TEST(ActivationRule, IsCheckedAgainstTheModelsRows) {
  wire::ActivationRule rule;
  EXPECT_TRUE(CheckActivationRule(rule, 7).ok());
  rule.set_type(wire::Q8_0);
  EXPECT_TRUE(CheckActivationRule(rule, 96).ok());
  EXPECT_THAT(CheckActivationRule(rule, 100),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rows of 100 values")));
  rule.set_type(static_cast<wire::ActivationType>(4));
  EXPECT_THAT(CheckActivationRule(rule, 96),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown type 4")));
}

TEST(ActivationRule, SendsSmallStepsAsF32) {
  wire::ActivationRule rule;
  rule.set_type(wire::Q8_0);
  EXPECT_EQ(ActivationTypeFor(rule, 1), wire::Q8_0);
  EXPECT_EQ(ActivationRuleText(rule), "q8_0");
  rule.set_f32_rows_max(4);
  EXPECT_EQ(ActivationTypeFor(rule, 4), wire::F32);
  EXPECT_EQ(ActivationTypeFor(rule, 5), wire::Q8_0);
  EXPECT_EQ(ActivationRuleText(rule), "f32 to 4 rows, then q8_0");
  rule.set_type(wire::F32);
  EXPECT_EQ(ActivationRuleText(rule), "f32");
}

// The figures of models are in tests/bench/README.md; these bounds are about three times the values
// measured here.
TEST(Activations, ThreeStagesAreExactWithF32AndCloseWithF16) {
  StartEngine();
  for (const testing::ZooModel& model : testing::ModelZoo()) {
    if (model.name != "llama" && model.name != "qwen3moe") continue;
    SCOPED_TRACE(model.name);
    auto path = WriteRandomModel(testing::SpecOf(model), testing::ProcessTempFolder());
    ASSERT_TRUE(path.ok()) << path.status();
    auto probe = testing::ActivationProbe::Open(*path);
    ASSERT_TRUE(probe.ok()) << probe.status();
    ASSERT_TRUE((*probe)->Prepare("", 16).ok());
    const auto exact = (*probe)->Measure(wire::F32);
    ASSERT_TRUE(exact.ok()) << exact.status();
    EXPECT_EQ(exact->logit_max, 0);
    EXPECT_EQ(exact->kl_max, 0);
    EXPECT_EQ(exact->top1, 1);
    const auto half = (*probe)->Measure(wire::F16);
    ASSERT_TRUE(half.ok()) << half.status();
    EXPECT_GT(half->logit_max, 0);  // else nothing was encoded
    EXPECT_LE(half->logit_max, 0.01 * half->logit_largest);
    EXPECT_LE(half->kl_max, 1e-4);
  }
}

}  // namespace
}  // namespace strata
