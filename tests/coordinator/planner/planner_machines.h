// Clusters of twelve devices in machines as there are, whose devices share memory, bandwidth and
// cores, for the planner's tests and benchmark.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/problem/plan.h"
#include "tests/coordinator/planner/planner_instance.h"

namespace strata::testing {

enum class Machines {
  kMacs,       // Metal and CPU: all memory for one, three quarters for the other
  kPcs,        // integrated GPU with half of the memory, and CPU
  kProcesses,  // four nodes on one machine: memory and cores
  kPairs,      // two unlike devices, memory only
  kTriples,    // three of them
  kMixed,      // four, three, two and two that share, and one alone
  kOne,        // twelve in one machine
};

struct MachinesOptions {
  Machines machines = Machines::kMacs;
  double room = 1.5;  // memory of all, of what the model needs about
  uint32_t seed = 1;
};

inline constexpr uint32_t kManyLayers = 126;              // Llama 3.1 405B
inline constexpr uint64_t kManyLayerBytes = 1800u << 20;  // at 4 bits

inline LayerCosts ManyLayers(bool uneven) {
  LayerCosts costs = EqualLayers(kManyLayers, kManyLayerBytes);
  costs.first_bytes = 1200u << 20;
  costs.last_bytes = 1700u << 20;
  costs.head = {{kQ8, costs.last_bytes}};
  for (uint32_t i = 0; i < kManyLayers; ++i) {
    LayerCost& layer = costs.layers[i];
    layer.kv_bytes_per_position = 4096;
    if (!uneven || (i % 3 != 0 && i >= 10)) continue;
    layer.weight_bytes = layer.weight_bytes / 100 * 115;
    layer.dense = {{kQ8, layer.weight_bytes}};
  }
  return costs;
}

// `costs` outlives the request.
inline PlanRequest RequestForMachines(const LayerCosts& costs, const MachinesOptions& options) {
  std::mt19937 random(options.seed);
  const auto draw = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random()) / 4294967296.0;
  };
  const Machines kind = options.machines;
  std::vector<size_t> sizes;  // [machines]
  switch (kind) {
    case Machines::kMacs:
    case Machines::kPcs:
    case Machines::kPairs:
      sizes = {2, 2, 2, 2, 2, 2};
      break;
    case Machines::kTriples:
      sizes = {3, 3, 3, 3};
      break;
    case Machines::kProcesses:
      sizes = {4, 4, 4};
      break;
    case Machines::kMixed:
      sizes = {4, 3, 2, 2, 1};
      break;
    case Machines::kOne:
      sizes = {12};
      break;
  }
  PlanRequest request;
  request.costs = &costs;
  request.rule = CutAnywhere(costs.n_layer());
  request.cache = {.n_ctx = 4096, .n_seqs = 4, .n_batch = 128};
  struct Uplink {  // to the switch
    double latency_s, bytes_per_s;
  };
  std::vector<Uplink> uplinks;  // [nodes]
  std::vector<size_t> machine_of;
  for (size_t m = 0; m < sizes.size(); ++m) {
    const double share = static_cast<double>(sizes[m]) / 12;
    const double bytes =
        options.room * static_cast<double>(kManyLayerBytes) * kManyLayers * share * draw(0.6, 1.4);
    const double bytes_per_s = draw(50e9, 400e9);
    const bool wireless = draw(0, 1) < 0.3;
    const Uplink uplink = {wireless ? draw(0.5e-3, 3e-3) : draw(0.05e-3, 0.25e-3),
                           wireless ? draw(15e6, 80e6) : 117e6};
    const bool shares = sizes[m] > 1;
    if (shares) {
      request.memory_pools.push_back({absl::StrCat("m", m), static_cast<uint64_t>(bytes)});
    }
    for (size_t i = 0; i < sizes[m]; ++i) {
      if (i == 0 || kind == Machines::kProcesses) {
        request.nodes.push_back({absl::StrCat("n", request.nodes.size())});
        uplinks.push_back(uplink);
        machine_of.push_back(m);
      }
      PlanDevice device;
      device.node = request.nodes.size() - 1;
      device.name = absl::StrCat("D", i);
      double own = bytes, speed = bytes_per_s;
      bool bandwidth = false, cores = false;
      switch (kind) {
        case Machines::kMacs:
          own *= i == 0 ? 0.75 : 1;
          speed *= i == 0 ? 0.9 : 0.4;
          bandwidth = true;
          break;
        case Machines::kPcs:
          own *= i == 0 ? 0.5 : 1;
          speed *= i == 0 ? 0.9 : 0.7;
          bandwidth = true;
          break;
        case Machines::kProcesses:
          speed *= 1 - 0.02 * static_cast<double>(i);
          bandwidth = cores = true;
          break;
        case Machines::kPairs:
        case Machines::kTriples:
        case Machines::kMixed:
        case Machines::kOne:
          own *= shares ? draw(0.5, 0.9) : 1;
          speed = draw(20e9, 900e9);
          bandwidth = kind == Machines::kMixed || kind == Machines::kOne;
          cores = bandwidth && i % 2 == 0;
          break;
      }
      device.memory_free_bytes = static_cast<uint64_t>(own);
      device.speed = SpeedOf(speed, 5e-6);
      device.speed.memory_bytes_per_s = std::max(speed, bytes_per_s);
      if (shares) {
        device.memory_pool = static_cast<int>(request.memory_pools.size()) - 1;
        if (bandwidth) device.bandwidth_pool = static_cast<int>(m);
        if (cores) device.cores_pool = static_cast<int>(m);
      }
      request.devices.push_back(device);
    }
  }
  const size_t n = request.nodes.size();
  request.links.resize(n * n);
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to) {
      PlanLink& link = request.links[from * n + to];
      if (machine_of[from] == machine_of[to]) {
        link = {.round_trip_s = 100e-6, .bytes_per_s = 2e9};
        continue;
      }
      link.bytes_per_s = std::min(uplinks[from].bytes_per_s, uplinks[to].bytes_per_s);
      link.round_trip_s = uplinks[from].latency_s + uplinks[to].latency_s +
                          2 * static_cast<double>(kLinkProbeBytes) / link.bytes_per_s;
    }
  }
  return request;
}

}  // namespace strata::testing
