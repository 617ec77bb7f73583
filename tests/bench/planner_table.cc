// Compares splitting by free memory (as exo and llama.cpp do) with the planner, on the devices of
// prima.cpp's paper. Predicted times, from data sheets: nothing is measured here.
//
// Devices and free memory: Li et al., "Prima.cpp", arXiv 2504.08791, and Table 1 of the README of
// github.com/Lizonghang/prima.cpp: Mac M1 2.4 GiB; laptop 4.1 GiB and an RTX 3070 with 8 GiB;
// desktop 9.7 GiB and an RTX 2080 Ti with 11 GiB; phone Mate 40 Pro (Kirin 9000) 1.9 GiB.
// Memory bandwidth and arithmetic, from the makers' data sheets: M1 68 GB/s and 2.6 TFLOPS; RTX
// 3070 (laptop) 448 GB/s and 16 TFLOPS; RTX 2080 Ti 616 GB/s and 13.4 TFLOPS; Kirin 9000, LPDDR5,
// 44 GB/s. Assumed, since the paper does not say: two channels of DDR4-3200 (51 GB/s) and 0.4 and
// 0.8 TFLOPS for the i9 of laptop and desktop, 0.1 TFLOPS for the phone's cores; programs reach 0.7
// of a sheet's bandwidth and a third of its arithmetic; Wi-Fi of 400 Mbit/s and 4 ms round trip.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/planner/placement_options.h"
#include "coordinator/planner/planner.h"
#include "tests/bench/by_memory.h"

namespace strata {
namespace {

constexpr uint32_t kQ4K = 12, kQ6K = 14, kF16 = 1;  // ggml_type
constexpr double kGiB = 1 << 30;
constexpr double kBandwidthShare = 0.7, kArithmeticShare = 1.0 / 3;

struct ModelShape {
  const char* name;
  uint32_t n_layer, n_embd, n_ff, n_head, n_head_kv, n_vocab;
};
// From the models' own config.json.
constexpr ModelShape kModels[] = {
    {"Llama 3 8B", 32, 4096, 14336, 32, 8, 128256},
    {"Qwen 2.5 14B", 48, 5120, 13824, 40, 8, 152064},
    {"Qwen 2.5 32B", 64, 5120, 27648, 40, 8, 152064},
    {"Llama 1 30B", 60, 6656, 17920, 52, 52, 32000},
    {"Llama 1 65B", 80, 8192, 22016, 64, 64, 32000},
    {"Llama 3 70B", 80, 8192, 28672, 64, 8, 128256},
};

uint64_t Bytes(uint32_t type, uint64_t weights) {
  return static_cast<uint64_t>(static_cast<double>(weights) * BitsPerWeight(type) / 8);
}

LayerCosts CostsOf(const ModelShape& shape) {
  LayerCosts costs;
  costs.architecture = "llama";
  costs.n_embd = shape.n_embd;
  costs.n_vocab = shape.n_vocab;
  costs.n_head = shape.n_head;
  costs.n_ff = shape.n_ff;
  costs.kv_type = kF16;
  const uint64_t head = shape.n_embd / shape.n_head;
  const uint64_t weights = 2ull * shape.n_embd * shape.n_embd +
                           2ull * shape.n_embd * head * shape.n_head_kv +
                           3ull * shape.n_embd * shape.n_ff;
  LayerCost layer;
  layer.weight_bytes = Bytes(kQ4K, weights);
  layer.dense = {{kQ4K, layer.weight_bytes}};
  layer.kv_bytes_per_position = 2 * head * shape.n_head_kv * 2;
  layer.kv_sharing = shape.n_head / shape.n_head_kv;
  layer.n_ops = 24;
  costs.layers.assign(shape.n_layer, layer);
  costs.first_bytes = Bytes(kQ4K, uint64_t{shape.n_embd} * shape.n_vocab);
  costs.last_bytes = Bytes(kQ6K, uint64_t{shape.n_embd} * shape.n_vocab);
  costs.head = {{kQ6K, costs.last_bytes}};
  return costs;
}

void AddDevice(PlanRequest* request, const char* node, const char* name, double memory_gib,
               SheetSpeed sheet) {
  if (request->nodes.empty() || request->nodes.back().name != node) {
    request->nodes.push_back({node});
  }
  PlanDevice device;
  device.node = request->nodes.size() - 1;
  device.name = name;
  device.memory_free_bytes = static_cast<uint64_t>(memory_gib * kGiB);
  sheet.memory_bytes_per_s *= kBandwidthShare;
  sheet.flops_per_s *= kArithmeticShare;
  const uint32_t types[] = {kQ4K, kQ6K, kF16};
  device.speed = SpeedOfSheet(sheet, types);
  request->devices.push_back(device);
}

PlanRequest Home(const LayerCosts& costs) {
  PlanRequest request;
  request.costs = &costs;
  AddDevice(&request, "mac", "Metal", 2.4, {68e9, 2.6e12, 5e-6});
  AddDevice(&request, "laptop", "CPU", 4.1, {51e9, 0.4e12, 5e-6});
  AddDevice(&request, "laptop", "CUDA0", 8, {448e9, 16e12, 4e-6});
  AddDevice(&request, "desktop", "CPU", 9.7, {51e9, 0.8e12, 5e-6});
  AddDevice(&request, "desktop", "CUDA0", 11, {616e9, 13.4e12, 4e-6});
  AddDevice(&request, "phone", "CPU", 1.9, {44e9, 0.1e12, 10e-6});
  request.links.assign(request.nodes.size() * request.nodes.size(),
                       {.round_trip_s = 4e-3, .bytes_per_s = 400e6 / 8});
  request.rule.architecture = "llama";
  for (uint32_t i = 1; i < costs.n_layer(); ++i) request.rule.cut_points.push_back(i);
  request.cache = {.n_ctx = 1024, .n_seqs = 1, .n_batch = 128};
  request.positions = 512;
  return request;
}

absl::StatusOr<Plan> ByMemory(PlanRequest request) {
  request.assignments = AssignLayers(request, LayersByMemory(request));
  return MakePlan(request);
}

std::string Split(const PlanRequest& request, const Plan& plan) {
  std::string text;
  for (const PlannedStage& stage : plan.stages) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", PlaceName(request, stage.device), " ",
                    stage.layers.size());
  }
  return text;
}

void Row(const ModelShape& shape, bool explain) {
  const LayerCosts costs = CostsOf(shape);
  PlanRequest request = Home(costs);
  const absl::StatusOr<Plan> naive = ByMemory(request);
  const absl::StatusOr<Plan> ours = MakePlan(request);
  request.objective = Objective::kThroughput;
  request.batch = 1;
  const absl::StatusOr<Plan> many = MakePlan(request);
  if (!ours.ok()) {
    std::printf("| %s | | | | %s |\n", shape.name, std::string(ours.status().message()).c_str());
    return;
  }
  const std::string by_memory = naive.ok()
                                    ? absl::StrFormat("%.0f / %.0f", naive->times[0].step_s * 1e3,
                                                      naive->times[0].slowest_s * 1e3)
                                    : "does not fit";
  const std::string gain =
      naive.ok() ? absl::StrFormat("%.1f / %.1f", naive->times[0].step_s / ours->times[0].step_s,
                                   naive->times[0].slowest_s / many->times[0].slowest_s)
                 : "";
  std::printf("| %s | %s | %.0f / %.0f | %s | %s |\n", shape.name, by_memory.c_str(),
              ours->times[0].step_s * 1e3, many->times[0].slowest_s * 1e3, gain.c_str(),
              Split(request, *ours).c_str());
  if (!explain) return;
  for (const DeviceLine& line : ours->devices) {
    std::printf("    %s: %s\n", PlaceName(request, line.device).c_str(), line.text.c_str());
  }
  for (const std::string& hint : ours->hints) std::printf("    hint: %s\n", hint.c_str());
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  const bool explain = argc > 1 && std::string(argv[1]) == "--explain";
  std::printf(
      "Predicted ms: one token of one sequence / slowest stage or hop; Q4_K, 512 positions.\n\n"
      "| model | by free memory | planner (latency / throughput) | times faster | layers (latency) "
      "|\n| --- | --- | --- | --- | --- |\n");
  for (const strata::ModelShape& shape : strata::kModels) strata::Row(shape, explain);
  return 0;
}
