#include "coordinator/planner/costs/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "shard/engine/activation_codec.h"

namespace strata {
namespace {

// The bytes of a frame besides its payload: prefix, header, gRPC's and TCP's own.
constexpr double kFrameBytes = 256;
constexpr double kRowHeaderBytes = 12;  // position, slot, token id
// The time for each row that the last stage samples and each token of the vocabulary: 0.14 ms for
// 32000 on a core of a Xeon of 2023 (tests/bench/README.md). Sampling is the host's work, on GPUs
// too.
constexpr double kSampleTokenSeconds = 4e-9;
// Two devices of one machine that wait for each other twice, and the bus between them.
constexpr double kHandOverSeconds = 50e-6;
constexpr double kHandOverBytesPerSecond = 8e9;

// Seconds for a byte at `rows`, interpolated between measurements; beyond them, extrapolated.
double Interpolate(const TypeSpeed& speed, double rows, MatrixUse use) {
  const bool experts = use == MatrixUse::kExperts && speed.expert_bytes_per_s[0] > 0;
  const auto& measured = experts ? speed.expert_bytes_per_s : speed.bytes_per_s;
  const auto at = [&](size_t i) { return measured[i] > 0 ? 1 / measured[i] : 0.0; };
  size_t right = 1;
  while (right + 1 < kProbeBatches.size() && rows > kProbeBatches[right]) ++right;
  const double x0 = kProbeBatches[right - 1], x1 = kProbeBatches[right];
  const double y0 = at(right - 1), y1 = at(right);
  const double line = y0 + (y1 - y0) * (std::max(rows, 1.0) - x0) / (x1 - x0);
  return rows > x1 ? std::max(line, y1) : line;
}

double WeightSeconds(const std::vector<TypedBytes>& weights, const DeviceSpeed& speed, double rows,
                     MatrixUse use = MatrixUse::kDense) {
  double seconds = 0;
  for (const TypedBytes& each : weights) {
    seconds += static_cast<double>(each.bytes) * SecondsPerByte(speed, each.type, rows, use);
  }
  return seconds;
}

double Sum(const std::vector<TypedBytes>& weights) {
  double bytes = 0;
  for (const TypedBytes& each : weights) bytes += static_cast<double>(each.bytes);
  return bytes;
}

LayerTime Finish(double seconds, double bytes, const DeviceSpeed& speed) {
  const double memory = speed.memory_bytes_per_s > 0 ? bytes / speed.memory_bytes_per_s : 0;
  return {seconds, std::min(seconds, memory)};
}

}  // namespace

StepShape DecodeStep(uint32_t batch, uint32_t positions) {
  return {.rows = batch, .sequences = batch, .positions = positions, .logits = batch};
}

StepShape PromptStep(uint32_t rows, uint32_t positions) {
  return {.rows = rows, .sequences = 1, .positions = positions, .logits = 1};
}

double HopSeconds(const PlanLink& link, double bytes) {
  if (!link.usable()) return std::numeric_limits<double>::infinity();
  const double probe_s = static_cast<double>(kLinkProbeBytes) / link.bytes_per_s;
  const double latency = std::max(link.round_trip_s / 2 - probe_s, kLocalHopSeconds);
  return latency + bytes / link.bytes_per_s;
}

double ActivationBytes(const LayerCosts& costs, const StepShape& step, wire::ActivationType type) {
  const auto row_bytes = static_cast<double>(ActivationRowBytes(type, costs.n_embd));
  return kFrameBytes + static_cast<double>(step.rows) * (kRowHeaderBytes + row_bytes);
}

double TokenBytes(const StepShape& step) {
  return kFrameBytes + static_cast<double>(step.rows) * kRowHeaderBytes;
}

double SecondsPerByte(const DeviceSpeed& speed, uint32_t type, double rows, MatrixUse use) {
  const double bits = BitsPerWeight(type);
  const std::string name = TypeName(type);
  const TypeSpeed* nearest = nullptr;
  double nearest_bits = 0;
  for (const TypeSpeed& each : speed.types) {
    if (each.type == name) return Interpolate(each, rows, use);
  }
  // Rare: a type that was not measured.
  for (const TypeSpeed& each : speed.types) {
    for (uint32_t known = 0; known < 64; ++known) {
      if (TypeName(known) != each.type) continue;
      const double known_bits = BitsPerWeight(known);
      if (nearest == nullptr || std::abs(known_bits - bits) < std::abs(nearest_bits - bits)) {
        nearest = &each;
        nearest_bits = known_bits;
      }
    }
  }
  if (nearest == nullptr || bits == 0) return 0;
  return Interpolate(*nearest, rows, use) * nearest_bits / bits;
}

LayerTime PredictExperts(const LayerCosts& costs, uint32_t layer, const DeviceSpeed& speed,
                         const StepShape& step) {
  const LayerCost& cost = costs.layers[layer];
  if (cost.n_expert == 0) return {};
  const double touched = cost.ExpertsTouched(step.rows);
  const double share = touched / cost.n_expert;
  const double rows_each = touched > 0 ? step.rows * cost.n_expert_used / touched : 1;
  const double seconds = share * WeightSeconds(cost.experts, speed, rows_each, MatrixUse::kExperts);
  return Finish(seconds, share * Sum(cost.experts), speed);
}

LayerTime PredictLayer(const LayerCosts& costs, uint32_t layer, const DeviceSpeed& speed,
                       const StepShape& step) {
  const LayerTime rest = PredictWithoutExperts(costs, layer, speed, step);
  const LayerTime experts = PredictExperts(costs, layer, speed, step);
  return {rest.seconds + experts.seconds, rest.memory_seconds + experts.memory_seconds};
}

double HandOverSeconds(const LayerCosts& costs, const StepShape& step) {
  const double bytes = 2.0 * step.rows * costs.n_embd * sizeof(float);
  return kHandOverSeconds + bytes / kHandOverBytesPerSecond;
}

LayerTime PredictWithoutExperts(const LayerCosts& costs, uint32_t layer, const DeviceSpeed& speed,
                                const StepShape& step) {
  const LayerCost& cost = costs.layers[layer];
  const double rows = step.rows;
  double seconds = WeightSeconds(cost.dense, speed, rows) +
                   cost.n_ops * (speed.op_s + rows * costs.n_embd * speed.op_float_s);
  const double bytes = Sum(cost.dense);
  uint32_t positions = step.positions;
  if (cost.window > 0) positions = std::min(positions, cost.window);
  const double cached = static_cast<double>(step.sequences) * positions *
                        static_cast<double>(cost.kv_bytes_per_position);
  if (cached > 0) {
    const double rows_each = rows / step.sequences;
    seconds += cached * SecondsPerByte(speed, costs.kv_type, rows_each * cost.kv_sharing);
  }
  // Read and written.
  const double state =
      2.0 * static_cast<double>(step.sequences) * static_cast<double>(cost.state_bytes);
  if (speed.memory_bytes_per_s > 0) seconds += state / speed.memory_bytes_per_s;
  return Finish(seconds, bytes + cached + state, speed);
}

LayerTime PredictHead(const LayerCosts& costs, const DeviceSpeed& speed, const StepShape& step) {
  if (step.logits == 0) return {};
  const double sampling = static_cast<double>(step.logits) * costs.n_vocab * kSampleTokenSeconds;
  LayerTime time = Finish(WeightSeconds(costs.head, speed, step.logits), Sum(costs.head), speed);
  time.seconds += sampling;
  return time;
}

DeviceSpeed SpeedOfSheet(const SheetSpeed& sheet, absl::Span<const uint32_t> types) {
  DeviceSpeed speed;
  speed.memory_bytes_per_s = sheet.memory_bytes_per_s;
  speed.op_s = sheet.op_s;
  for (const uint32_t type : types) {
    TypeSpeed each;
    each.type = TypeName(type);
    const double weights_per_byte = 8 / BitsPerWeight(type);
    for (size_t i = 0; i < kProbeBatches.size(); ++i) {
      const double arithmetic = sheet.flops_per_s / (2 * weights_per_byte * kProbeBatches[i]);
      each.bytes_per_s[i] = std::min(sheet.memory_bytes_per_s, arithmetic);
    }
    speed.types.push_back(each);
  }
  return speed;
}

}  // namespace strata
