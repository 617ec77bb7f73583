// How long a stage takes on a device and a hop on a link, predicted from what both measured of
// themselves. Pure functions; any thread. All times are seconds, all sizes bytes.
//
// A stage: each matrix's bytes ÷ the speed that the device multiplied its type at for so many rows
// (shard/device/device_probe.h measures at 1, 4, 8, 16 and 128 rows; lines between). Measured at
// one row that is memory's bandwidth or the cost of unpacking, at 128 it is arithmetic, so there is
// no roofline to guess. To that come the cache at its length, read as an f16 matrix by the heads
// that share it, and so much for each operation of the graph.
//
// A hop: half the round trip of 16 KiB, adjusted by the throughput to the bytes that go. What the
// host does for a row that is sampled and for a frame are constants (cost_model.cc says from
// where).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/planner/layer_costs.h"
#include "proto/frame.pb.h"
#include "shard/device/device_probe.h"

namespace strata {

// One step through all stages.
struct StepShape {
  uint32_t rows = 1;       // tokens
  uint32_t sequences = 1;  // texts that they belong to
  uint32_t positions = 0;  // in the cache of each of them
  uint32_t logits = 1;     // rows that the head is computed for
};

// `batch` texts that get one token each, behind `positions` others.
StepShape DecodeStep(uint32_t batch, uint32_t positions);
// A chunk of one prompt.
StepShape PromptStep(uint32_t rows, uint32_t positions);

// Between two nodes, one way; as measured. No throughput: there is no way.
struct PlanLink {
  double round_trip_s = 0;  // of 16 KiB there and back, p50
  double bytes_per_s = 0;
  bool usable() const { return bytes_per_s > 0 && round_trip_s >= 0; }  // false for NaN
};
inline constexpr uint64_t kLinkProbeBytes = 16 << 10;
// Of a frame from process to process on one machine, through gRPC on both sides, where threads have
// slept meanwhile: 0.09 to 0.15 ms were measured (tests/bench/README.md). No link is faster.
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
// The layer in two: what its routed experts take, and all the rest.
LayerTime PredictExperts(const LayerCosts& costs, uint32_t layer, const DeviceSpeed& speed,
                         const StepShape& step);
LayerTime PredictWithoutExperts(const LayerCosts& costs, uint32_t layer, const DeviceSpeed& speed,
                                const StepShape& step);
// Of a layer whose experts the host computes for another device: its activations go over and back,
// and both devices wait for each other. Assumed, not measured.
double HandOverSeconds(const LayerCosts& costs, const StepShape& step);
LayerTime PredictHead(const LayerCosts& costs, const DeviceSpeed& speed, const StepShape& step);

// A device as a data sheet would describe it, for comparisons with published ones: every type in
// `types` at what memory and arithmetic allow, whichever is less.
struct SheetSpeed {
  double memory_bytes_per_s = 0;
  double flops_per_s = 0;  // of matrix multiplication
  double op_s = 5e-6;
};
DeviceSpeed SpeedOfSheet(const SheetSpeed& sheet, absl::Span<const uint32_t> types);

}  // namespace strata
