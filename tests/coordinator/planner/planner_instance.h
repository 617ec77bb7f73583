// Made-up clusters and models for the planner's tests and benchmark.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/problem/plan.h"

namespace strata::testing {

inline constexpr uint32_t kQ8 = 8;  // GGML_TYPE_Q8_0

// Layers of `layer_bytes` each, all read by every step.
inline LayerCosts EqualLayers(uint32_t n_layer, uint64_t layer_bytes) {
  LayerCosts costs;
  costs.architecture = "llama";
  costs.n_embd = 4096;
  costs.n_vocab = 32000;
  costs.kv_type = 1;
  costs.layers.resize(n_layer);
  for (LayerCost& layer : costs.layers) {
    layer.weight_bytes = layer_bytes;
    layer.dense = {{kQ8, layer_bytes}};
  }
  return costs;
}

inline CutRule CutAnywhere(uint32_t n_layer) {
  CutRule rule;
  rule.architecture = "llama";
  rule.exactness = Exactness::kExact;
  for (uint32_t i = 1; i < n_layer; ++i) rule.cut_points.push_back(i);
  return rule;
}

inline DeviceSpeed SpeedOf(double bytes_per_s, double op_s = 0) {
  DeviceSpeed speed;
  speed.memory_bytes_per_s = bytes_per_s;
  speed.op_s = op_s;
  speed.types = {{.type = "q8_0",
                  .bytes_per_s = {bytes_per_s, bytes_per_s, bytes_per_s * 0.75, bytes_per_s / 2,
                                  bytes_per_s / 8}}};
  return speed;
}

// Nodes n0, n1 … with one CPU each, equal links.
struct NodeShape {
  uint64_t memory_bytes;
  double bytes_per_s;
};
inline PlanRequest RequestFor(const LayerCosts& costs, const std::vector<NodeShape>& shapes,
                              PlanLink link = {.round_trip_s = 1e-3, .bytes_per_s = 125e6}) {
  PlanRequest request;
  request.costs = &costs;
  request.rule = CutAnywhere(costs.n_layer());
  request.cache = {.n_ctx = 256, .n_seqs = 1, .n_batch = 32};
  for (const NodeShape& shape : shapes) {
    PlanDevice device;
    device.node = request.nodes.size();
    device.name = "CPU";
    device.memory_free_bytes = shape.memory_bytes;
    device.speed = SpeedOf(shape.bytes_per_s);
    request.nodes.push_back({absl::StrCat("n", request.nodes.size())});
    request.devices.push_back(device);
  }
  request.links.assign(shapes.size() * shapes.size(), link);
  return request;
}

}  // namespace strata::testing
