#include "coordinator/planner/costs/cost_model.h"

#include <cmath>

#include "ggml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

// 1 GB/s at one row, a tenth of a second for a GB more at each of the next figures.
DeviceSpeed Speed() {
  DeviceSpeed speed;
  speed.memory_bytes_per_s = 1e9;
  speed.types = {{.type = "q8_0", .bytes_per_s = {1e9, 1e9, 0.75e9, 0.5e9, 0.1e9}}};
  return speed;
}

LayerCosts OneLayer() {
  LayerCosts costs;
  costs.n_embd = 1024;
  costs.kv_type = GGML_TYPE_Q8_0;
  costs.layers.resize(1);
  costs.layers[0].dense = {{GGML_TYPE_Q8_0, 1000000}};
  return costs;
}

TEST(SecondsPerByte, IsWhatWasMeasuredAndLinesBetween) {
  const DeviceSpeed speed = Speed();
  EXPECT_DOUBLE_EQ(SecondsPerByte(speed, GGML_TYPE_Q8_0, 1), 1e-9);
  EXPECT_DOUBLE_EQ(SecondsPerByte(speed, GGML_TYPE_Q8_0, 16), 2e-9);
  EXPECT_DOUBLE_EQ(SecondsPerByte(speed, GGML_TYPE_Q8_0, 10), 1.5e-9);
  EXPECT_DOUBLE_EQ(SecondsPerByte(speed, GGML_TYPE_Q8_0, 128), 1e-8);
  EXPECT_NEAR(SecondsPerByte(speed, GGML_TYPE_Q8_0, 240), 1.8e-8, 1e-12);
}

TEST(SecondsPerByte, AnUnmeasuredTypeIsAsFastForEachWeightAsTheNearest) {
  DeviceSpeed speed = Speed();
  speed.types.push_back({.type = "q4_0", .bytes_per_s = {9e8, 9e8, 9e8, 9e8, 9e8}});
  // q4_1 has 5 bits a weight, q4_0 4.5.
  EXPECT_NEAR(SecondsPerByte(speed, GGML_TYPE_Q4_1, 1), 4.5 / 5 / 9e8, 1e-15);
  EXPECT_EQ(SecondsPerByte({}, GGML_TYPE_Q4_1, 1), 0);
}

TEST(SecondsPerByte, ExpertsHaveKernelsOfTheirOwn) {
  DeviceSpeed speed = Speed();
  const auto experts = [&](double rows) {
    return SecondsPerByte(speed, GGML_TYPE_Q8_0, rows, MatrixUse::kExperts);
  };
  EXPECT_DOUBLE_EQ(experts(1), 1e-9);  // not measured
  speed.types[0].expert_bytes_per_s = {5e8, 5e8, 5e8, 5e8, 5e7};
  EXPECT_DOUBLE_EQ(experts(1), 2e-9);
  EXPECT_DOUBLE_EQ(experts(128), 2e-8);
  EXPECT_DOUBLE_EQ(SecondsPerByte(speed, GGML_TYPE_Q8_0, 1), 1e-9);
}

TEST(HopSeconds, OfAProbesBytesIsHalfItsRoundTrip) {
  const PlanLink link = {.round_trip_s = 3e-3, .bytes_per_s = 100e6 / 8};
  EXPECT_NEAR(HopSeconds(link, kLinkProbeBytes), 1.5e-3, 1e-9);
  EXPECT_NEAR(HopSeconds(link, 2 * kLinkProbeBytes), 1.5e-3 + 16384 / 12.5e6, 1e-9);
  EXPECT_LT(HopSeconds(link, 100), 0.25e-3);
  EXPECT_TRUE(std::isinf(HopSeconds({.round_trip_s = 1e-3}, 1)));
}

TEST(HopSeconds, NeverFallsBelowItsBytes) {
  const PlanLink odd = {.round_trip_s = 1e-6, .bytes_per_s = 1e6};
  EXPECT_GT(HopSeconds(odd, 1e6), 1.0);
}

TEST(HopSeconds, NoLinkIsFasterThanTheMachineItself) {
  const PlanLink fast = {.round_trip_s = 30e-6, .bytes_per_s = 10e9};
  EXPECT_GE(HopSeconds(fast, 100), kLocalHopSeconds);
  EXPECT_LT(HopSeconds(fast, 100), 1.01 * kLocalHopSeconds);
}

TEST(PredictLayer, ReadsTheDenseWeightsOnce) {
  const LayerCosts costs = OneLayer();
  const LayerTime time = PredictLayer(costs, 0, Speed(), DecodeStep(1, 0));
  EXPECT_DOUBLE_EQ(time.seconds, 1e-3);
  EXPECT_DOUBLE_EQ(time.memory_seconds, 1e-3);
  const LayerTime many = PredictLayer(costs, 0, Speed(), DecodeStep(16, 0));
  EXPECT_DOUBLE_EQ(many.seconds, 2e-3);
  EXPECT_DOUBLE_EQ(many.memory_seconds, 1e-3);
}

TEST(PredictLayer, ReadsOnlyTheExpertsThatAreTouched) {
  LayerCosts costs = OneLayer();
  costs.layers[0].experts = {{GGML_TYPE_Q8_0, 64000000}};
  costs.layers[0].n_expert = 64;
  costs.layers[0].n_expert_used = 4;
  EXPECT_NEAR(PredictLayer(costs, 0, Speed(), DecodeStep(1, 0)).seconds, 5e-3, 1e-9);
  const double touched = 64 * (1 - std::pow(60.0 / 64, 4));
  EXPECT_NEAR(PredictLayer(costs, 0, Speed(), DecodeStep(4, 0)).memory_seconds,
              1e-3 + touched * 1e-3, 1e-9);
}

TEST(PredictLayer, ReadsTheCacheOfEverySequenceUpToItsWindow) {
  LayerCosts costs = OneLayer();
  costs.layers[0].kv_bytes_per_position = 1000;
  EXPECT_NEAR(PredictLayer(costs, 0, Speed(), DecodeStep(1, 2000)).seconds, 3e-3, 1e-9);
  EXPECT_NEAR(PredictLayer(costs, 0, Speed(), DecodeStep(4, 2000)).seconds, 9e-3, 1e-9);
  costs.layers[0].window = 500;
  EXPECT_NEAR(PredictLayer(costs, 0, Speed(), DecodeStep(1, 2000)).seconds, 1.5e-3, 1e-9);
}

TEST(PredictLayer, ChargesForOperationsAndState) {
  LayerCosts costs = OneLayer();
  costs.layers[0].n_ops = 20;
  costs.layers[0].state_bytes = 500000;
  DeviceSpeed speed = Speed();
  speed.op_s = 1e-5;
  EXPECT_NEAR(PredictLayer(costs, 0, speed, DecodeStep(1, 0)).seconds, 1e-3 + 2e-4 + 1e-3, 1e-9);
  costs.layers[0].state_bytes = 0;
  speed.op_float_s = 1e-9;
  EXPECT_NEAR(PredictLayer(costs, 0, speed, DecodeStep(4, 0)).seconds, 1e-3 + 2e-4 + 20 * 4.096e-6,
              1e-9);
}

TEST(PredictHead, CountsRowsThatAreSampled) {
  LayerCosts costs = OneLayer();
  costs.head = {{GGML_TYPE_Q8_0, 1000000}};
  EXPECT_DOUBLE_EQ(PredictHead(costs, Speed(), DecodeStep(16, 0)).seconds, 2e-3);
  EXPECT_DOUBLE_EQ(PredictHead(costs, Speed(), PromptStep(128, 0)).seconds, 1e-3);
  costs.n_vocab = 32000;  // sampling
  EXPECT_NEAR(PredictHead(costs, Speed(), DecodeStep(1, 0)).seconds, 1.13e-3, 0.05e-3);
}

TEST(SpeedOfSheet, IsMemoryForOneRowAndArithmeticForMany) {
  const DeviceSpeed speed =
      SpeedOfSheet({.memory_bytes_per_s = 100e9, .flops_per_s = 1e12}, {GGML_TYPE_F16});
  ASSERT_EQ(speed.types.size(), 1);
  EXPECT_EQ(speed.types[0].type, "f16");
  EXPECT_DOUBLE_EQ(speed.types[0].bytes_per_s[0], 100e9);
  EXPECT_DOUBLE_EQ(speed.types[0].bytes_per_s[4], 1e12 / 128);  // an f16 weight is 2 operations
}

}  // namespace
}  // namespace strata
