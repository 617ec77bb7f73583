// The planner's input (PlanRequest) and output (Plan). Plain values; see planner.h. Times are
// seconds, sizes bytes, layers count from 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/planner/costs/cost_model.h"
#include "coordinator/planner/costs/layer_costs.h"
#include "coordinator/planner/costs/link_activations.h"
#include "shard/device/device_probe.h"
#include "shard/model/architecture.h"

namespace strata {

enum class Objective {
  kLatency,     // one user: the sum of all stages and hops
  kThroughput,  // many users: the slowest stage or hop; of the plans with the best, the least sum
};

inline constexpr int kOwnPool = -1;  // shared with no other device
inline constexpr int kNoHost = -1;

// Where the routed experts of a model are when its layers are on a device that is not a CPU: on
// that device, too, or in the memory of the node's CPU, which then computes them (llama.cpp's
// --cpu-moe).
enum class CpuMoe {
  kAuto,  // as many as do not fit the device, where that makes the plan better
  kAll,   // in the CPU's, wherever a node has both
  kNone,
};

struct PlanDevice {
  size_t node = 0;   // in PlanRequest::nodes
  std::string name;  // "CPU", "CUDA0"
  uint64_t memory_free_bytes = 0;
  DeviceSpeed speed;
  // Overhead of a stage for each step, besides its graph: 0.05 to 0.1 ms were measured until its
  // thread has woken (tests/bench/README.md).
  double step_overhead_s = 80e-6;
  // Devices with the same number share that resource. memory_pool is an index of
  // PlanRequest::memory_pools; the others are any numbers.
  int memory_pool = kOwnPool;
  int bandwidth_pool = kOwnPool;
  int cores_pool = kOwnPool;
  // The CPU of its node, an index of PlanRequest::devices, that keeps and computes the experts of
  // the layers in `cpu_moe` that a stage on this device has; the CPU gets no stage of its own then.
  // The planner fills both in (moe.h).
  int moe_host = kNoHost;
  LayerRange cpu_moe = {0, UINT32_MAX};
  bool is_cpu =
      false;  // ggml's CPU device, where libllama computes the experts that the host keeps
  bool has_own_memory =
      false;  // not the machine's, which keeps MachineBytesOf() a stage (costs/layer_costs.h)
};

struct PlanNode {
  std::string name;      // unique
  std::string kept_out;  // the reason why no plan may use it, for people; empty: none
  // Where its disk is known to be short of room: the bytes of weights it would have to fetch of all
  // layers before, [n_layer + 1], and the room there is: for each of its stages alone, and around
  // kept stages (kept_stages.h) for all together. Empty: no limit.
  std::vector<uint64_t> fetch_bytes;
  uint64_t disk_free_bytes = 0;
};

struct MemoryPool {
  std::string name;  // for people: the machine's
  uint64_t free_bytes = 0;
};

// `--assign`, `--exclude` and `--reserve` name a node, or one device of it as "node/CUDA0".
struct Assignment {
  std::string place;
  LayerRange layers;
};
// A stage that is loaded already, the experts of its layers on the device.
struct KeptStage {
  size_t device = 0;  // in PlanRequest::devices
  LayerRange layers;
};
struct Reserve {
  std::string node;  // empty: every node
  uint64_t bytes = 0;
};

struct PlanRequest {
  const LayerCosts* costs = nullptr;  // outlives the call
  CutRule rule;
  std::vector<PlanNode> nodes;
  std::vector<PlanDevice> devices;
  std::vector<MemoryPool> memory_pools;
  std::vector<std::string> core_pools;    // names, of the cores_pool of devices that were measured
  std::vector<PlanLink> links;            // [nodes, nodes], row: from; the diagonal is not read
  double local_hop_s = kLocalHopSeconds;  // between workers of one node
  size_t coordinator_node = 0;            // steps start and end there
  // The type of activations between stages. With `auto`, nodes and cuts are chosen as for f32,
  // which is mostly right where steps have few rows.
  ActivationChoice activations;
  // [nodes, nodes], how nodes encode for others; empty: as `activations` says, f32 for `auto`.
  std::vector<wire::ActivationRule> link_activations;

  CacheShape cache;        // what the caches must hold
  uint32_t positions = 0;  // of the cache, that times are predicted for; 0: n_ctx
  Objective objective = Objective::kLatency;
  CpuMoe cpu_moe = CpuMoe::kAuto;
  // Sequences in the step that is optimized; 0: 1 for kLatency, n_seqs (at most 16) for
  // kThroughput.
  uint32_t batch = 0;

  std::vector<std::string> exclude;     // nodes or devices
  std::vector<Reserve> reserve;         // kept free in each memory of the node, once
  std::vector<Assignment> assignments;  // not empty: exactly these stages, in layer order
  bool with_hints = true;               // fill Plan::hints; plans some 10 times more

  uint32_t PredictedPositions() const { return positions > 0 ? positions : cache.n_ctx; }
  const PlanLink& Link(size_t from, size_t to) const { return links[from * nodes.size() + to]; }
  wire::ActivationType SentAs(size_t from, size_t to, uint32_t rows) const;
};

inline constexpr std::array<uint32_t, 3> kPlanBatches = {1, 4, 16};
inline constexpr uint32_t kPlanChunkTokens = 128;  // of a prompt

// A step of `batch` sequences.
struct StepTime {
  uint32_t batch = 0;
  double step_s = 0;     // through all stages, back to the coordinator
  double slowest_s = 0;  // longest stage or hop: between results when enough steps are in flight
};

struct PlannedStage {
  size_t device = 0;  // in PlanRequest::devices
  LayerRange layers;
  uint64_t weight_bytes = 0;  // on the device
  uint64_t cache_bytes = 0;
  uint64_t compute_bytes = 0;
  double compute_s = 0;        // at the batch planned for
  double hop_in_s = 0;         // from the stage before, or the coordinator
  wire::ActivationRule sends;  // to the next stage; the last one sends none
  // The experts of its first so many layers are in the memory of the node's CPU.
  uint32_t n_cpu_moe = 0;
  uint64_t host_bytes = 0;
  uint64_t memory_bytes() const { return weight_bytes + cache_bytes + compute_bytes; }
};

// One for each device of the request, in its order.
struct DeviceLine {
  size_t device = 0;
  bool is_used = false;
  // Its layers, their cost, and why it has no more; or why it was left out. Without its name.
  std::string text;
};

struct Plan {
  Objective objective = Objective::kLatency;
  uint32_t batch = 1;                // planned for
  std::vector<PlannedStage> stages;  // in layer order
  double back_s = 0;                 // hop from the last stage to the coordinator
  std::array<StepTime, kPlanBatches.size()> times;
  StepTime prompt;  // batch: kPlanChunkTokens consecutive tokens of one prompt
  bool is_by_hand = false;
  std::vector<DeviceLine> devices;
  std::vector<std::string> hints;  // gains of more memory or faster links, the largest first
};

}  // namespace strata
