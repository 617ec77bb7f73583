// A PlanRequest as arrays for the planner's inner loops: devices that may take part, points where
// the model may be cut, seconds and bytes by point. Internal to the planner; immutable once made;
// any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/problem/plan.h"

namespace strata {

inline constexpr double kNever = std::numeric_limits<double>::infinity();
// Costs that differ by no more than this share are equal: sums in another order differ by rounding.
inline constexpr double kRounding = 1e-9;

// A stage by candidate and points: points[i] is where a stage may begin or end; the last one is the
// end of the model.
struct Piece {
  size_t candidate = 0;
  size_t begin = 0, end = 0;  // points
  bool operator==(const Piece&) const = default;
};
using Pieces = std::vector<Piece>;

// Limits of a device, tighter than its own, while the planner tries divisions of shared resources.
struct Caps {
  uint64_t memory_bytes = std::numeric_limits<uint64_t>::max();
  double seconds = kNever;         // of its stage
  double memory_seconds = kNever;  // of its memory bandwidth
};

class PlanProblem {
 public:
  struct Candidate {
    size_t device = 0;  // in the request
    size_t node = 0;
    uint64_t memory_bytes = 0;           // usable: after the reserve, at most its pool's
    std::vector<double> seconds;         // [points], of all layers before
    std::vector<double> memory_seconds;  // [points]
    // Experts in the memory of the node's CPU, and the room for them there.
    std::vector<uint64_t> host_bytes;  // [points], of all layers before
    uint64_t host_bytes_max = 0;
    // Weights that its node would have to fetch, and the room on its disk; empty: enough.
    std::vector<uint64_t> fetch_bytes;  // [points], of all layers before
    uint64_t disk_free_bytes = 0;
    bool shares_with_host = false;  // one memory: the experts count for the stage nevertheless
    bool has_own_memory = false;    // as PlanDevice
    double head_s = 0, head_memory_s = 0;
    double overhead_s = 0;
    int memory_pool = kOwnPool, bandwidth_pool = kOwnPool, cores_pool = kOwnPool;
  };

  // `request` has been checked and outlives this. Candidates are its devices without the excluded
  // ones, those that were not measured, and those with no room for any stage.
  PlanProblem(const PlanRequest& request, const StepShape& step);

  const PlanRequest& request() const { return request_; }
  const StepShape& step() const { return step_; }
  const std::vector<uint32_t>& points() const { return points_; }  // layers: 0, cuts, n_layer
  size_t last_point() const { return points_.size() - 1; }
  const std::vector<Candidate>& candidates() const { return candidates_; }
  // Devices with no room for any stage, which are no candidates.
  const std::vector<Candidate>& too_small() const { return too_small_; }

  LayerRange Layers(const Piece& piece) const { return {points_[piece.begin], points_[piece.end]}; }
  bool SizeAllowed(size_t begin, size_t end) const;
  // Runs of `end` points [first, last) such that a stage from `begin` may end there.
  const std::vector<std::pair<size_t, size_t>>& Runs(size_t begin) const { return runs_[begin]; }

  double StageSeconds(const Piece& piece) const;
  double StageMemorySeconds(const Piece& piece) const;
  uint64_t StageBytes(size_t begin, size_t end) const;  // weights, cache, compute buffer
  uint64_t StageBytes(const Piece& piece) const;        // the part on its device
  // The bytes of a pool, after the reserves of the nodes that use it.
  uint64_t PoolBytes(int pool) const { return pool_bytes_[static_cast<size_t>(pool)]; }

  double Hop(size_t from, size_t to) const;  // candidates
  double HopIn(size_t to) const;             // from the coordinator
  double HopBack(size_t from) const;         // to the coordinator

  // For each begin, the last end (inclusive) that fits the device and `caps`; `begin` when none
  // does. More layers never need less.
  std::vector<size_t> LatestEnds(size_t candidate, const Caps& caps) const;
  bool Fits(const Piece& piece, const Caps& caps) const;
  // The bytes of a stage's weights that its node would have to fetch onto a disk that is short of
  // room; 0: the disk is not short.
  uint64_t FetchBytes(const Piece& piece) const;

 private:
  uint64_t BytesOn(const Candidate& candidate, size_t begin, size_t end) const;
  // The time of the device for its layers, and their bytes in the memory of its host.
  void PriceLayers(const PlanDevice& device, Candidate* candidate) const;
  double Between(size_t from_node, size_t to_node, double bytes) const;

  const PlanRequest& request_;
  const StepShape step_;
  std::vector<uint32_t> points_;
  std::vector<Candidate> candidates_, too_small_;
  std::vector<std::vector<std::pair<size_t, size_t>>> runs_;  // [points]
  std::vector<uint64_t> layer_bytes_;                         // [points], weights and cache before
  uint64_t compute_bytes_ = 0, compute_last_bytes_ = 0;
  std::vector<uint64_t> pool_bytes_;
  std::vector<double> hops_;  // [nodes, nodes], activations
};

// Whether `place` ("node" or "node/device") means this device.
bool PlaceMeans(const PlanRequest& request, const std::string& place, size_t device);
// Whether the user excluded the device, or its node takes no stages.
bool IsExcluded(const PlanRequest& request, size_t device);
uint64_t ReserveOf(const PlanRequest& request, size_t node);
// The step that the request optimizes.
StepShape StepOf(const PlanRequest& request);

}  // namespace strata
