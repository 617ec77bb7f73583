// Predicts the time of a stage on a device and of a hop on a link from their measurements. Pure
// functions; any thread. All times are seconds, all sizes bytes.
//
// A stage: each matrix's bytes ÷ the speed that the device multiplied its type at for so many rows
// (shard/device/device_probe.h measures at 1, 4, 8, 16 and 128 rows; lines between). At one
// row the measured speed is memory bandwidth or the cost of unpacking, at 128 rows arithmetic, so
// there is no roofline to guess. Added are the cache at its length, read as an f16 matrix by the
// heads that share it, and a cost for each operation of the graph.
//
// A hop: half the round trip of 16 KiB, adjusted by the throughput to the bytes that are sent. The
// host's work for a sampled row and for a frame are constants (sources in cost_model.cc).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/planner/costs/layer_costs.h"
#include "proto/frame.pb.h"
#include "shard/device/device_probe.h"

namespace strata {

// One step through all stages.
struct StepShape {
  uint32_t rows = 1;       // tokens
  uint32_t sequences = 1;  // that the rows belong to
  uint32_t positions = 0;  // in the cache of each of them
  uint32_t logits = 1;     // rows that the head is computed for
};

// `batch` sequences that get one token each, behind `positions` others.
StepShape DecodeStep(uint32_t batch, uint32_t positions);
// A chunk of one prompt.
StepShape PromptStep(uint32_t rows, uint32_t positions);

// The measured link from one node to another. No throughput: there is no link.
struct PlanLink {
  double round_trip_s = 0;  // of 16 KiB there and back, p50
  double bytes_per_s = 0;
  bool usable() const { return bytes_per_s > 0 && round_trip_s >= 0; }  // false for NaN
};
inline constexpr uint64_t kLinkProbeBytes = 16 << 10;
// The time of a frame between processes on one machine, through gRPC on both sides, where threads
// have slept meanwhile: 0.09 to 0.15 ms were measured (tests/bench/README.md). No link is faster.
inline constexpr double kLocalHopSeconds = 100e-6;

// Infinite when the link is not usable.
double HopSeconds(const PlanLink& link, double bytes);

// Payload and headers of the frame that goes to a stage, to the first one, and back with results.
double ActivationBytes(const LayerCosts& costs, const StepShape& step,
                       wire::ActivationType type = wire::F32);
double TokenBytes(const StepShape& step);

// Seconds for a byte of a matrix of this ggml_type, multiplied by `rows` (≥ 1) rows. A type that
// was not measured is as fast as the measured one whose weights are nearest in size, per weight. 0
// when nothing was measured.
enum class MatrixUse {
  kDense,    // every row passes it
  kExperts,  // with `rows` for each expert; as kDense where that was not measured
};
double SecondsPerByte(const DeviceSpeed& speed, uint32_t type, double rows,
                      MatrixUse use = MatrixUse::kDense);

struct LayerTime {
  double seconds = 0;         // of the device
  double memory_seconds = 0;  // of its memory: bytes read ÷ bandwidth; at most `seconds`
};
LayerTime PredictLayer(const LayerCosts& costs, uint32_t layer, const DeviceSpeed& speed,
                       const StepShape& step);
// The layer in two parts: its routed experts, and all the rest.
LayerTime PredictExperts(const LayerCosts& costs, uint32_t layer, const DeviceSpeed& speed,
                         const StepShape& step);
LayerTime PredictWithoutExperts(const LayerCosts& costs, uint32_t layer, const DeviceSpeed& speed,
                                const StepShape& step);
// The extra time of a layer whose experts the host computes for another device: its activations go
// over and back, and both devices wait for each other. Assumed, not measured.
double HandOverSeconds(const LayerCosts& costs, const StepShape& step);
LayerTime PredictHead(const LayerCosts& costs, const DeviceSpeed& speed, const StepShape& step);

// A device as a data sheet would describe it, for comparisons with published ones: every type in
// `types` at the lower of the limits of memory and arithmetic.
struct SheetSpeed {
  double memory_bytes_per_s = 0;
  double flops_per_s = 0;  // of matrix multiplication
  double op_s = 5e-6;
};
DeviceSpeed SpeedOfSheet(const SheetSpeed& sheet, absl::Span<const uint32_t> types);

}  // namespace strata
