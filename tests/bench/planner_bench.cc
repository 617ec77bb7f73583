// Time of the planner for 12 to 1000 devices. How good its plans are is tested
// (planner_machines_test, planner_random_test).
#include <algorithm>
#include <cstdint>
#include <random>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "benchmark/benchmark.h"
#include "coordinator/planner/planner.h"
#include "tests/coordinator/planner/planner_instance.h"
#include "tests/coordinator/planner/planner_machines.h"

namespace strata::testing {
namespace {

constexpr uint32_t kLayers = 126;             // Llama 3.1 405B
constexpr uint64_t kLayerBytes = 1800 << 20;  // at Q4_K: 221 GiB in all

// Machines of all kinds, that hold `room` times the model together; links of 0.2 to 10 ms.
PlanRequest Cluster(const LayerCosts& costs, uint32_t n, double room, uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random()) / 4294967296.0;
  };
  const double mean = room * kLayers * static_cast<double>(kLayerBytes) / n;
  std::vector<NodeShape> shapes;
  for (uint32_t i = 0; i < n; ++i) {
    shapes.push_back({static_cast<uint64_t>(mean * draw(0.3, 1.7)), draw(20e9, 900e9)});
  }
  PlanRequest request = RequestFor(costs, shapes);
  for (PlanLink& link : request.links) {
    link = {.round_trip_s = draw(0.2e-3, 10e-3), .bytes_per_s = draw(10e6, 1e9)};
  }
  request.cache = {.n_ctx = 4096, .n_seqs = 4, .n_batch = 128};
  return request;
}

void Plan(benchmark::State& state, Objective objective, double room) {
  const LayerCosts costs = EqualLayers(kLayers, kLayerBytes);
  PlanRequest request = Cluster(costs, static_cast<uint32_t>(state.range(0)), room, 1);
  request.objective = objective;
  size_t stages = 0;
  double cost = 0;
  for (auto _ : state) {
    const absl::StatusOr<strata::Plan> plan = MakePlan(request);
    if (!plan.ok()) {
      state.SkipWithError(plan.status().ToString().c_str());
      break;
    }
    stages = plan->stages.size();
    cost = objective == Objective::kLatency ? plan->times[0].step_s : plan->times[1].slowest_s;
  }
  state.counters["stages"] = static_cast<double>(stages);
  state.counters["ms"] = cost * 1e3;
}

// Every device is far too small for many layers.
void Tight(benchmark::State& state, Objective objective) { Plan(state, objective, 2); }
// Machines so large that many of them suffice.
void Roomy(benchmark::State& state, Objective objective) {
  Plan(state, objective, static_cast<double>(state.range(0)) / 6);
}

// Twelve devices in machines that share, with memory for not much more than the model and with
// plenty: the worst of the time.
void InMachines(benchmark::State& state, Machines machines, Objective objective, bool uneven) {
  const LayerCosts costs = ManyLayers(uneven);
  double worst_s = 0;
  int n = 0;
  for (auto _ : state) {
    for (const double room : {1.4, 2.0, 3.0}) {
      for (uint32_t seed = 1; seed <= 3; ++seed) {
        PlanRequest request =
            RequestForMachines(costs, {.machines = machines, .room = room, .seed = seed});
        request.objective = objective;
        request.batch = 1;
        request.with_hints = false;
        const absl::Time begin = absl::Now();
        const absl::StatusOr<strata::Plan> plan = MakePlan(request);
        worst_s = std::max(worst_s, absl::ToDoubleSeconds(absl::Now() - begin));
        n += plan.ok();  // else too little memory for that draw
      }
    }
  }
  state.counters["plans"] = n;
  state.counters["worst_s"] = worst_s;
}

// Pairs that share their machine's memory.
void Pairs(benchmark::State& state, Objective objective) {
  const LayerCosts costs = EqualLayers(kLayers, kLayerBytes);
  const auto n = static_cast<uint32_t>(state.range(0));
  PlanRequest request = Cluster(costs, n, n / 6.0, 1);
  request.objective = objective;
  for (uint32_t i = 0; i < n; ++i) {
    request.devices[i].node = i / 2;
    request.devices[i].name = absl::StrCat("D", i);
    request.devices[i].memory_pool = request.devices[i].bandwidth_pool = static_cast<int>(i / 2);
    request.memory_pools.resize(i / 2 + 1);
    MemoryPool& pool = request.memory_pools.back();
    pool.free_bytes = std::max(pool.free_bytes, request.devices[i].memory_free_bytes);
  }
  size_t stages = 0;
  for (auto _ : state) {
    const absl::StatusOr<strata::Plan> plan = MakePlan(request);
    CHECK(plan.ok()) << plan.status();
    stages = plan->stages.size();
  }
  state.counters["stages"] = static_cast<double>(stages);
}

constexpr Objective kLatency = Objective::kLatency, kThroughput = Objective::kThroughput;
BENCHMARK_CAPTURE(InMachines, macs_latency, Machines::kMacs, kLatency, false)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, macs_throughput, Machines::kMacs, kThroughput, false)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, pcs_latency, Machines::kPcs, kLatency, false)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, pcs_throughput, Machines::kPcs, kThroughput, false)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, processes_latency, Machines::kProcesses, kLatency, false)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, processes_throughput, Machines::kProcesses, kThroughput, false)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, pairs_latency, Machines::kPairs, kLatency, false)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, pairs_throughput, Machines::kPairs, kThroughput, false)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, triples_latency, Machines::kTriples, kLatency, false)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, triples_throughput, Machines::kTriples, kThroughput, false)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, mixed_latency, Machines::kMixed, kLatency, false)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, mixed_throughput, Machines::kMixed, kThroughput, false)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, one_latency, Machines::kOne, kLatency, false)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, one_throughput, Machines::kOne, kThroughput, false)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, macs_uneven_latency, Machines::kMacs, kLatency, true)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, macs_uneven_throughput, Machines::kMacs, kThroughput, true)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, pcs_uneven_latency, Machines::kPcs, kLatency, true)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, pcs_uneven_throughput, Machines::kPcs, kThroughput, true)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, processes_uneven_latency, Machines::kProcesses, kLatency, true)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(InMachines, processes_uneven_throughput, Machines::kProcesses, kThroughput, true)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(Pairs, latency, kLatency)
    ->Arg(100)
    ->Arg(1000)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(Pairs, throughput, kThroughput)
    ->Arg(100)
    ->Arg(1000)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(Tight, latency, kLatency)
    ->Arg(12)
    ->Arg(60)
    ->Arg(100)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(Roomy, latency, kLatency)
    ->Arg(1000)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(Roomy, throughput, kThroughput)
    ->Arg(1000)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

}  // namespace
}  // namespace strata::testing
