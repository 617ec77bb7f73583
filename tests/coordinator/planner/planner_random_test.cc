// The planner compared with all possible plans, on small random clusters. The cost of a plan and
// whether it fits are computed here independently, from the cost model alone.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/planner_instance.h"

namespace strata::testing {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

constexpr double kNone = std::numeric_limits<double>::infinity();
constexpr size_t kInstances = 2000;  // that some plan fits

struct Instance {
  LayerCosts costs;
  PlanRequest request;
};

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  uint32_t Below(uint32_t n) { return random_() % n; }
  double Between(double low, double high) {
    return low * std::pow(high / low, static_cast<double>(random_()) / 4294967296.0);
  }

 private:
  std::mt19937 random_;
};

void MakeInstance(uint32_t seed, Instance* instance) {
  Draw draw(seed);
  const uint32_t n_layer = 1 + draw.Below(8);
  instance->costs = EqualLayers(n_layer, 0);
  LayerCosts& costs = instance->costs;
  const bool uneven = draw.Below(2) == 0, sparse = draw.Below(4) == 0;
  for (LayerCost& layer : costs.layers) {
    layer.weight_bytes = uneven ? static_cast<uint64_t>(draw.Between(50e6, 400e6)) : 200000000;
    layer.dense = {{kQ8, layer.weight_bytes}};
    if (sparse) layer.weight_bytes += draw.Below(2) * 150000000;  // kept and not read
    layer.kv_bytes_per_position = (uneven ? draw.Below(2) : 1) * 4096;
  }
  costs.first_bytes = draw.Below(2) * 150000000;
  costs.last_bytes = 100000000;
  costs.head = {{kQ8, costs.last_bytes}};
  if (draw.Below(2) == 0) costs.tied_bytes = std::min(costs.first_bytes, costs.last_bytes);
  costs.embedding_bytes = costs.tied_bytes > 0 ? costs.tied_bytes : costs.first_bytes;
  if (costs.tied_bytes == 0 && draw.Below(2) == 0) {
    costs.last_placeholder_bytes = costs.embedding_bytes / 2;
  }

  PlanRequest& request = instance->request;
  request.costs = &costs;
  request.rule = CutAnywhere(n_layer);
  if (draw.Below(4) == 0) {
    std::erase_if(request.rule.cut_points, [&](uint32_t) { return draw.Below(2) == 0; });
  }
  if (draw.Below(4) == 0) request.rule.forbidden_sizes = {1 + draw.Below(n_layer)};
  request.cache = {.n_ctx = 1024, .n_seqs = 1 + draw.Below(8), .n_batch = 32};
  request.objective = draw.Below(2) == 0 ? Objective::kLatency : Objective::kThroughput;
  request.batch = 1 + draw.Below(8);
  request.with_hints = false;
  const uint32_t n_devices = 1 + draw.Below(5);
  const uint32_t n_nodes = 1 + draw.Below((n_devices + 1) / 2);
  const double memory_scale = draw.Between(0.3, 3);
  for (uint32_t i = 0; i < n_nodes; ++i) request.nodes.push_back({absl::StrCat("n", i)});
  for (uint32_t i = 0; i < n_devices; ++i) {
    PlanDevice device;
    device.node = i < n_nodes ? i : draw.Below(n_nodes);
    device.name = absl::StrCat("D", i);
    device.memory_free_bytes = static_cast<uint64_t>(memory_scale * draw.Between(200e6, 1500e6));
    device.speed = SpeedOf(draw.Between(2e9, 100e9));
    request.devices.push_back(device);
  }
  // Devices of many machines share what they have: one node is a machine, or two are. Their memory
  // is about as much as one of them may have, or much more.
  const uint32_t nodes_each = 1 + draw.Below(2);
  for (uint32_t node = 0; node < n_nodes; node += nodes_each) {
    if (draw.Below(4) == 0) continue;
    const bool memory = draw.Below(8) != 0, bandwidth = draw.Below(2) == 0;
    const bool cores = draw.Below(3) == 0;
    uint64_t most = 0;
    for (PlanDevice& device : request.devices) {
      if (device.node / nodes_each != node / nodes_each) continue;
      if (memory) device.memory_pool = static_cast<int>(request.memory_pools.size());
      if (bandwidth) device.bandwidth_pool = static_cast<int>(node);
      if (cores && draw.Below(4) != 0) device.cores_pool = static_cast<int>(node);
      most = std::max(most, device.memory_free_bytes);
    }
    if (!memory) continue;
    request.memory_pools.push_back(
        {"m", static_cast<uint64_t>(draw.Between(0.8, 1.6) * static_cast<double>(most))});
  }
  for (PlanDevice& device : request.devices) {
    device.has_own_memory = device.memory_pool == kOwnPool && draw.Below(2) == 0;
  }
  request.links.resize(size_t{n_nodes} * n_nodes);
  const bool through_a_switch = draw.Below(2) == 0;
  std::vector<double> latencies_s;  // to the switch
  for (uint32_t i = 0; i < n_nodes; ++i) latencies_s.push_back(draw.Between(1e-4, 1e-2));
  for (size_t i = 0; i < request.links.size(); ++i) {
    if (through_a_switch) {
      request.links[i] = {.round_trip_s = latencies_s[i / n_nodes] + latencies_s[i % n_nodes],
                          .bytes_per_s = 1e8};
    } else if (draw.Below(20) != 0) {  // else there is no link
      request.links[i] = {.round_trip_s = draw.Between(1e-4, 2e-2),
                          .bytes_per_s = draw.Between(1e6, 1e9)};
    }
  }
  request.coordinator_node = draw.Below(n_nodes);
  if (draw.Below(4) == 0) request.reserve = {{"", 100000000}};
  if (draw.Below(4) != 0) return;
  // Disks that have some layers and room for some more.
  for (PlanNode& node : request.nodes) {
    if (draw.Below(2) == 0) continue;
    node.disk_free_bytes = draw.Below(n_layer + 1) * uint64_t{200000000};
    node.fetch_bytes = {0};
    for (const LayerCost& layer : costs.layers) {
      node.fetch_bytes.push_back(node.fetch_bytes.back() + draw.Below(3) / 2 * layer.weight_bytes +
                                 draw.Below(2) * 50000000);
    }
  }
}

struct Stage {
  size_t device;
  uint32_t begin, end;
};

// All plans, each as it grows.
class ByForce {
 public:
  explicit ByForce(const PlanRequest& request)
      : request_(request), costs_(*request.costs), step_(DecodeStep(request.batch, 1024)) {
    for (const PlanDevice& device : request.devices) {
      std::vector<LayerTime> times;
      for (uint32_t i = 0; i < costs_.n_layer(); ++i) {
        times.push_back(PredictLayer(costs_, i, device.speed, step_));
      }
      times_.push_back(times);
      heads_.push_back(PredictHead(costs_, device.speed, step_));
    }
    for (uint32_t i = 0; i < costs_.n_layer(); ++i) {
      for (uint32_t end = i + 1; end <= costs_.n_layer(); ++end) {
        uint64_t bytes = costs_.WeightBytes({i, end});
        for (uint32_t l = i; l < end; ++l) bytes += CacheBytes(costs_.layers[l], request.cache);
        bytes += ComputeBytes(costs_, request.cache, end == costs_.n_layer());
        bytes_[{i, end}] = bytes;
      }
    }
  }

  struct Cost {
    double sum = kNone, max = kNone;
  };

  Cost CostOf(const std::vector<Stage>& stages) const {
    Cost cost = {0, 0};
    std::map<int, double> bandwidth, cores;
    size_t at = request_.coordinator_node;
    const auto hop = [&](size_t to, double bytes) {
      const double s = at == to ? request_.local_hop_s : HopSeconds(request_.Link(at, to), bytes);
      cost.sum += s;
      cost.max = std::max(cost.max, s);
      at = to;
    };
    for (const Stage& stage : stages) {
      const PlanDevice& device = request_.devices[stage.device];
      hop(device.node, stage.begin == 0 ? TokenBytes(step_) : ActivationBytes(costs_, step_));
      double s = device.step_overhead_s, memory_s = 0;
      for (uint32_t i = stage.begin; i < stage.end; ++i) {
        s += times_[stage.device][i].seconds;
        memory_s += times_[stage.device][i].memory_seconds;
      }
      if (stage.end == costs_.n_layer()) {
        s += heads_[stage.device].seconds;
        memory_s += heads_[stage.device].memory_seconds;
      }
      cost.sum += s;
      cost.max = std::max(cost.max, s);
      if (device.bandwidth_pool != kOwnPool) {
        cost.max = std::max(cost.max, bandwidth[device.bandwidth_pool] += memory_s);
      }
      if (device.cores_pool != kOwnPool) {
        cost.max = std::max(cost.max, cores[device.cores_pool] += s);
      }
    }
    hop(request_.coordinator_node, TokenBytes(step_));
    return cost;
  }

  bool Fits(const std::vector<Stage>& stages) const {
    const uint64_t reserve = request_.reserve.empty() ? 0 : request_.reserve[0].bytes;
    std::map<int, uint64_t> pools;
    for (const Stage& stage : stages) {
      const PlanDevice& device = request_.devices[stage.device];
      const PlanNode& node = request_.nodes[device.node];
      if (!node.fetch_bytes.empty() &&
          node.fetch_bytes[stage.end] - node.fetch_bytes[stage.begin] > node.disk_free_bytes) {
        return false;
      }
      uint64_t bytes = bytes_.at({stage.begin, stage.end});
      if (device.has_own_memory) {
        bytes -= MachineBytesOf(costs_, request_.cache, {stage.begin, stage.end}).all();
      }
      if (device.memory_pool == kOwnPool) {
        if (bytes + reserve > device.memory_free_bytes) return false;
        continue;
      }
      if (bytes > device.memory_free_bytes) return false;
      // Every node keeps its reserve.
      std::set<size_t> nodes;
      for (const PlanDevice& each : request_.devices) {
        if (each.memory_pool == device.memory_pool) nodes.insert(each.node);
      }
      pools[device.memory_pool] += bytes;
      const uint64_t free =
          request_.memory_pools[static_cast<size_t>(device.memory_pool)].free_bytes;
      if (pools[device.memory_pool] + nodes.size() * reserve > free) return false;
    }
    return true;
  }

  // Least sum, least maximum, and the least sum among those with the least maximum.
  void Run() { Grow(); }
  Cost best() const { return best_; }

 private:
  bool MayEnd(uint32_t begin, uint32_t end) const {
    const CutRule& rule = request_.rule;
    if (end != costs_.n_layer() &&
        std::count(rule.cut_points.begin(), rule.cut_points.end(), end) == 0) {
      return false;
    }
    return (begin == 0 && end == costs_.n_layer()) ||
           std::count(rule.forbidden_sizes.begin(), rule.forbidden_sizes.end(), end - begin) == 0;
  }

  void Grow() {
    const uint32_t begin = stages_.empty() ? 0 : stages_.back().end;
    if (begin == costs_.n_layer()) {
      const Cost cost = CostOf(stages_);
      const bool is_latency = request_.objective == Objective::kLatency;
      const bool better = is_latency
                              ? cost.sum < best_.sum
                              : cost.max < best_.max * (1 - 1e-9) ||
                                    (cost.max < best_.max * (1 + 1e-9) && cost.sum < best_.sum);
      if (cost.sum < kNone && better) best_ = cost;
      return;
    }
    for (size_t d = 0; d < request_.devices.size(); ++d) {
      if (std::any_of(stages_.begin(), stages_.end(),
                      [&](const Stage& stage) { return stage.device == d; })) {
        continue;
      }
      for (uint32_t end = begin + 1; end <= costs_.n_layer(); ++end) {
        if (!MayEnd(begin, end)) continue;
        stages_.push_back({d, begin, end});
        if (Fits(stages_)) Grow();
        stages_.pop_back();
      }
    }
  }

  const PlanRequest& request_;
  const LayerCosts& costs_;
  const StepShape step_;
  std::vector<std::vector<LayerTime>> times_;
  std::vector<LayerTime> heads_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> bytes_;
  std::vector<Stage> stages_;
  Cost best_;
};

std::vector<Stage> StagesOf(const Plan& plan) {
  std::vector<Stage> stages;
  for (const PlannedStage& stage : plan.stages) {
    stages.push_back({stage.device, stage.layers.begin, stage.layers.end});
  }
  return stages;
}

double CostOf(const PlanRequest& request, const ByForce::Cost& cost) {
  return request.objective == Objective::kLatency ? cost.sum : cost.max;
}

// Whether plans would be better if nothing were shared.
bool IsTight(PlanRequest request, double cost) {
  for (PlanDevice& device : request.devices) {
    device.memory_pool = device.bandwidth_pool = device.cores_pool = kOwnPool;
  }
  const absl::StatusOr<Plan> plan = MakePlan(request);
  return plan.ok() && CostOf(request, ByForce(request).CostOf(StagesOf(*plan))) < cost * (1 - 1e-9);
}

void Print(const char* what, std::vector<double>* ratios) {
  std::sort(ratios->begin(), ratios->end());
  std::printf("%zu %s: cost / least cost median %.6f, worst %.6f\n", ratios->size(), what,
              (*ratios)[ratios->size() / 2], ratios->back());
}

TEST(Planner, CostsWhatTheBestOfAllPlansCosts) {
  std::vector<double> ratios, tight_ratios;
  size_t shared = 0, limited = 0, infeasible = 0, shortest = 0;
  for (uint32_t seed = 1; ratios.size() < kInstances; ++seed) {
    Instance instance;
    MakeInstance(seed, &instance);
    const PlanRequest& request = instance.request;
    ByForce force(request);
    force.Run();

    const absl::StatusOr<Plan> plan = MakePlan(request);
    if (force.best().sum == kNone) {
      ++infeasible;
      EXPECT_TRUE(absl::IsResourceExhausted(plan.status()) ||
                  absl::IsFailedPrecondition(plan.status()))
          << "seed " << seed << ": " << plan.status();
      continue;
    }
    ASSERT_TRUE(plan.ok()) << "seed " << seed << ": " << plan.status();
    const std::vector<Stage> stages = StagesOf(*plan);
    ASSERT_TRUE(force.Fits(stages)) << "seed " << seed;
    const ByForce::Cost cost = force.CostOf(stages);
    const double ratio = CostOf(request, cost) / CostOf(request, force.best());
    EXPECT_THAT(ratio, AllOf(Ge(1 - 1e-6), Le(1.01))) << "seed " << seed;
    shortest += cost.sum < force.best().sum * (1 + 1e-6);
    shared += !request.memory_pools.empty();
    limited += std::any_of(request.nodes.begin(), request.nodes.end(),
                           [](const PlanNode& node) { return !node.fetch_bytes.empty(); });
    ratios.push_back(ratio);
    if (IsTight(request, CostOf(request, cost))) tight_ratios.push_back(ratio);
  }
  EXPECT_GT(shared, kInstances / 2);
  EXPECT_GT(limited, kInstances / 20);
  EXPECT_GT(tight_ratios.size(), kInstances / 10);
  EXPECT_GT(infeasible, kInstances / 50);
  EXPECT_GT(shortest, kInstances - kInstances / 200);  // of those with the least maximum
  std::printf("%zu more do not fit, %zu share memory\n", infeasible, shared);
  Print("plans", &ratios);
  Print("of these where sharing costs something", &tight_ratios);
}

// Two machines whose two devices each share bandwidth or cores and have a memory of their own, that
// all layers are read from alike, but that some take more of.
void MakeKeptInstance(uint32_t seed, Instance* instance) {
  Draw draw(seed);
  const uint32_t n_layer = 5 + draw.Below(4);
  instance->costs = EqualLayers(n_layer, 100000000);
  LayerCosts& costs = instance->costs;
  uint64_t all = 0;
  for (LayerCost& layer : costs.layers) {
    layer.weight_bytes += draw.Below(4) * 300000000;
    all += layer.weight_bytes;
  }
  costs.last_bytes = 50000000;
  costs.head = {{kQ8, costs.last_bytes}};
  PlanRequest& request = instance->request;
  request.costs = &costs;
  request.rule = CutAnywhere(n_layer);
  request.cache = {.n_ctx = 1024, .n_seqs = 1, .n_batch = 32};
  request.objective = Objective::kThroughput;
  request.batch = 1;
  request.with_hints = false;
  request.nodes = {{"a"}, {"b"}};
  const double speed = draw.Between(5e9, 50e9);
  for (uint32_t i = 0; i < 4; ++i) {
    PlanDevice device;
    device.node = i / 2;
    device.name = absl::StrCat("D", i);
    device.memory_free_bytes =
        static_cast<uint64_t>(draw.Between(0.25, 0.6) * static_cast<double>(all));
    device.speed = SpeedOf(speed * draw.Between(0.9, 1.1));
    device.speed.memory_bytes_per_s *= 1.2;
    (draw.Below(2) == 0 ? device.cores_pool : device.bandwidth_pool) = static_cast<int>(i / 2);
    request.devices.push_back(device);
  }
  const double latency_s = draw.Between(1e-4, 1e-3);
  request.local_hop_s = 1e-4;
  request.links.assign(4, {.round_trip_s = latency_s, .bytes_per_s = 1e9});
}

TEST(Planner, CostsTheLeastWhereLayersKeepWhatTheyDoNotRead) {
  size_t compared = 0;
  for (uint32_t seed = 1; compared < kInstances / 40; ++seed) {
    Instance instance;
    MakeKeptInstance(seed, &instance);
    const PlanRequest& request = instance.request;
    ByForce force(request);
    force.Run();
    if (force.best().sum == kNone) continue;
    ++compared;
    const absl::StatusOr<Plan> plan = MakePlan(request);
    ASSERT_TRUE(plan.ok()) << "seed " << seed << ": " << plan.status();
    const ByForce::Cost cost = force.CostOf(StagesOf(*plan));
    EXPECT_LE(cost.max, force.best().max * (1 + 1e-6)) << "seed " << seed;
    EXPECT_LE(cost.sum, force.best().sum * 1.01) << "seed " << seed;
  }
}

}  // namespace
}  // namespace strata::testing
