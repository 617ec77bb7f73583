// How long the planner thinks: exact plans of up to 12 devices, bounded search for more, and how
// far from exact the search is where both can be had.
#include <cstdint>
#include <random>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "coordinator/planner.h"
#include "tests/coordinator/planner_instance.h"

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

void Plan(benchmark::State& state, Objective objective, bool search_only, double room) {
  const LayerCosts costs = EqualLayers(kLayers, kLayerBytes);
  PlanRequest request = Cluster(costs, static_cast<uint32_t>(state.range(0)), room, 1);
  request.objective = objective;
  request.search_only = search_only;
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

void Exact(benchmark::State& state, Objective objective) { Plan(state, objective, false, 2); }
void Search(benchmark::State& state, Objective objective) { Plan(state, objective, true, 2); }
// Every device is far too small for much.
void SearchTight(benchmark::State& state, Objective objective) { Plan(state, objective, true, 2); }
// Machines large enough that many would do.
void SearchRoomy(benchmark::State& state, Objective objective) {
  Plan(state, objective, true, static_cast<double>(state.range(0)) / 6);
}

// Pairs of devices that share their machine's memory.
void ExactShared(benchmark::State& state) {
  const LayerCosts costs = EqualLayers(kLayers, kLayerBytes);
  const auto n = static_cast<uint32_t>(state.range(0));
  PlanRequest request = Cluster(costs, n, 2.2, 1);
  for (uint32_t i = 0; i < n; ++i) {
    request.devices[i].node = i / 2;
    request.devices[i].name = absl::StrCat("D", i);
    request.devices[i].memory_pool = static_cast<int>(i / 2);
    request.memory_pools.resize(i / 2 + 1);
    MemoryPool& pool = request.memory_pools.back();
    pool.free_bytes = std::max(pool.free_bytes, request.devices[i].memory_free_bytes);
    pool.free_bytes += pool.free_bytes / 8;
  }
  bool is_exact = false;
  double gap = 1;
  for (auto _ : state) {
    const absl::StatusOr<strata::Plan> plan = MakePlan(request);
    is_exact = plan.ok() && plan->is_exact;
    gap = plan.ok() ? plan->gap : 1;
    if (!plan.ok()) state.SkipWithError(plan.status().ToString().c_str());
  }
  state.counters["exact"] = is_exact ? 1 : 0;
  state.counters["gap"] = gap;
}

// The search's cost over the exact one's, 10 clusters of 12 devices.
void Distance(benchmark::State& state, Objective objective) {
  const LayerCosts costs = EqualLayers(kLayers, kLayerBytes);
  double worst = 0, sum = 0;
  int n = 0;
  for (auto _ : state) {
    for (uint32_t seed = 1; seed <= 10; ++seed) {
      PlanRequest request = Cluster(costs, 12, seed % 2 == 0 ? 1.4 : 3, seed);
      request.objective = objective;
      request.batch = 1;
      request.with_hints = false;
      const auto exact = MakePlan(request);
      request.search_only = true;
      const auto found = MakePlan(request);
      CHECK(exact.ok() && found.ok());
      const double ratio = objective == Objective::kLatency
                               ? found->times[0].step_s / exact->times[0].step_s
                               : found->times[0].slowest_s / exact->times[0].slowest_s;
      worst = std::max(worst, ratio);
      sum += ratio;
      ++n;
    }
  }
  state.counters["mean"] = sum / n;
  state.counters["worst"] = worst;
}

constexpr Objective kLatency = Objective::kLatency, kThroughput = Objective::kThroughput;
BENCHMARK_CAPTURE(Exact, latency, kLatency)->Arg(8)->Arg(12)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Exact, throughput, kThroughput)->Arg(8)->Arg(12)->Unit(benchmark::kMillisecond);
BENCHMARK(ExactShared)->Arg(8)->Arg(12)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(Search, latency, kLatency)
    ->Arg(12)
    ->Arg(100)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(SearchTight, latency, kLatency)
    ->Arg(60)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(SearchRoomy, latency, kLatency)
    ->Arg(1000)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(SearchRoomy, throughput, kThroughput)
    ->Arg(1000)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(Distance, latency, kLatency)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(Distance, throughput, kThroughput)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
}  // namespace strata::testing
