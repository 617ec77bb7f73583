// Times of plans, predicted and measured, on four machines unlike each other (plans_cluster.h).
// Prints a table for tests/bench/README.md. scripts/bench-plans runs it.
//
//   plans_bench [--rounds N] [--steps N] [--explain] DENSE.gguf MOE.gguf
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/planner/planner.h"
#include "shard/model/architecture.h"
#include "shard/model/model_file.h"
#include "tests/bench/by_memory.h"
#include "tests/bench/plans_cluster.h"
#include "tests/bench/step_timer.h"

namespace strata {
namespace {

constexpr uint32_t kPromptTokens = 32;
constexpr uint32_t kWarmSteps = 2;
constexpr uint32_t kSeqsMax = 8;
constexpr uint64_t kMiB = 1 << 20;

// `desk` is fast and has little memory, `laptop` has half a core, `attic` is fast behind a slow
// cable, `board` is slow.
std::vector<Machine> Machines() {
  return {
      {.name = "desk", .limits = {.name = "desk", .cpus = "0", .memory_bytes = 300 * kMiB}},
      {.name = "laptop",
       .limits = {.name = "laptop",
                  .cpu_cores = 0.5,
                  .cpu_period = absl::Milliseconds(2),
                  .cpus = "1",
                  .memory_bytes = 420 * kMiB}},
      {.name = "attic",
       .limits = {.name = "attic", .cpus = "1", .memory_bytes = 600 * kMiB},
       .link_mbit_per_s = 100},
      {.name = "board",
       .limits = {.name = "board",
                  .cpu_cores = 0.25,
                  .cpu_period = absl::Milliseconds(4),
                  .cpus = "0",
                  .memory_bytes = 600 * kMiB}},
  };
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

struct Options {
  uint32_t rounds = 5;
  uint32_t steps = 10;
  bool explain = false;
  std::vector<std::string> models;
};

struct Model {
  std::string path;
  std::shared_ptr<const ModelFile> file;  // shared with nobody else
  LayerCosts costs;
  CutRule rule;
};

// A plan, and its measurements.
struct Entry {
  const Model* model = nullptr;
  uint32_t batch = 1;
  std::string name;
  bool is_chosen = false;
  PlanRequest request;
  Plan plan;
  double predicted_s = 0;
  std::vector<double> round_s;              // median step of each round
  std::vector<std::vector<double>> stages;  // [rounds][stages] median compute
  std::vector<double> queue_s;              // [rounds] median of all inboxes together
  std::vector<double> rest_s;  // [rounds] median of the time that is neither compute nor queue

  double measured_s() const { return Median(round_s); }
  double error() const { return predicted_s / measured_s() - 1; }
  std::string Group() const { return absl::StrCat(model->file->name(), ", batch ", batch); }
};

std::string Split(const Entry& entry) {
  std::string text;
  for (const PlannedStage& stage : entry.plan.stages) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", PlaceName(entry.request, stage.device), " ",
                    stage.layers.size());
  }
  return text;
}

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {}
  absl::Status Run();

 private:
  absl::Status OpenModels();
  // Plans by hand: layers of each machine.
  absl::Status Add(const Model& model, uint32_t batch, const std::string& name,
                   const std::vector<uint32_t>& layers);
  absl::Status AddPlans();
  absl::Status Measure(Entry* entry);
  void PrintTable() const;
  void PrintChoices() const;
  void Explain(const Entry& entry) const;

  const Options options_;
  std::vector<std::unique_ptr<Model>> models_;
  std::unique_ptr<PlansCluster> cluster_;
  ClusterSnapshot report_;
  std::vector<Entry> entries_;
};

absl::Status Bench::OpenModels() {
  for (const std::string& path : options_.models) {
    auto model = std::make_unique<Model>();
    model->path = path;
    auto file = ModelFile::Open(path);
    if (!file.ok()) return file.status();
    model->file = *std::move(file);
    auto costs = CountLayerCosts(model->file->header(), {});
    if (!costs.ok()) return costs.status();
    model->costs = *std::move(costs);
    auto rule = CutRuleFor(model->file->header(), false);
    if (!rule.ok()) return rule.status();
    model->rule = *std::move(rule);
    models_.push_back(std::move(model));
  }
  return absl::OkStatus();
}

absl::Status Bench::Add(const Model& model, uint32_t batch, const std::string& name,
                        const std::vector<uint32_t>& layers) {
  Entry entry;
  entry.model = &model;
  entry.batch = batch;
  entry.name = name;
  entry.request = PlanInputsOf(report_).request;
  PlanRequest& request = entry.request;
  request.costs = &model.costs;
  request.rule = model.rule;
  request.cache = {.n_ctx = 128, .n_seqs = batch, .n_batch = 64};
  request.positions = kPromptTokens + kWarmSteps + options_.steps / 2;
  request.batch = batch;
  request.with_hints = false;
  entry.is_chosen = layers.empty() && name == "chosen";
  if (!layers.empty()) request.assignments = AssignLayers(request, layers);
  if (name == "by free memory") {
    request.assignments = AssignLayers(request, LayersByMemory(request));
  }
  auto plan = MakePlan(request);
  if (!plan.ok())
    return absl::Status(plan.status().code(), absl::StrCat(name, ": ", plan.status().message()));
  entry.plan = *std::move(plan);
  entry.predicted_s = entry.plan.back_s;
  for (const PlannedStage& stage : entry.plan.stages) {
    entry.predicted_s += stage.compute_s + stage.hop_in_s;
  }
  entries_.push_back(std::move(entry));
  return absl::OkStatus();
}

absl::Status Bench::AddPlans() {
  const Model& dense = *models_[0];
  const Model& moe = *models_[1];
  struct ByHand {
    const Model* model;
    uint32_t batch;
    const char* name;
    std::vector<uint32_t> layers;  // of desk, laptop, attic, board
  };
  const std::vector<ByHand> plans = {
      {&dense, 1, "chosen", {}},
      {&dense, 1, "by free memory", {}},
      {&dense, 1, "even", {4, 4, 4, 4}},
      {&dense, 1, "attic alone", {0, 0, 16, 0}},
      {&dense, 1, "laptop alone", {0, 16, 0, 0}},
      {&dense, 1, "board alone", {0, 0, 0, 16}},
      {&dense, 1, "desk, laptop", {8, 8, 0, 0}},
      {&dense, 1, "laptop, board", {0, 8, 0, 8}},
      {&moe, 1, "chosen", {}},
      {&moe, 1, "by free memory", {}},
      {&moe, 1, "desk, laptop", {4, 8, 0, 0}},
      {&moe, 1, "board alone", {0, 0, 0, 12}},
      {&dense, kSeqsMax, "chosen", {}},
      {&dense, kSeqsMax, "by free memory", {}},
      {&dense, kSeqsMax, "even", {4, 4, 4, 4}},
      {&dense, kSeqsMax, "board alone", {0, 0, 0, 16}},
  };
  for (const ByHand& plan : plans) {
    if (auto s = Add(*plan.model, plan.batch, plan.name, plan.layers); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status Bench::Measure(Entry* entry) {
  const Model& model = *entry->model;
  PipelineOptions build;
  build.model_path = model.path;
  build.model_id = model.file->id();
  auto epoch = cluster_->NextEpoch(report_);
  if (!epoch.ok()) return epoch.status();
  build.epoch = *std::move(epoch);
  for (const PlannedStage& stage : entry->plan.stages) {
    const PlanDevice& device = entry->request.devices[stage.device];
    build.stages.push_back({.layers = stage.layers,
                            .node = report_.nodes[device.node].client.get(),
                            .device = device.name});
  }
  build.n_ctx = entry->request.cache.n_ctx;
  build.n_seq_max = entry->batch;
  build.n_batch = entry->request.cache.n_batch;
  build.listen_host = cluster_->host();
  StepTimer timer;
  auto pipeline = Pipeline::Build(std::move(build), &timer,
                                  [](size_t, const wire::LoadProgress&) { return true; });
  if (!pipeline.ok()) return pipeline.status();
  auto times = timer.Run(pipeline->get(), {.n_seqs = entry->batch,
                                           .prompt_tokens = kPromptTokens,
                                           .steps = options_.steps,
                                           .warm_steps = kWarmSteps,
                                           .n_vocab = model.costs.n_vocab});
  if (!times.ok()) return times.status();
  entry->round_s.push_back(Median(times->step_s));
  std::vector<double> rest = times->step_s, queue(rest.size());
  std::vector<double>& stages = entry->stages.emplace_back();
  for (size_t stage = 0; stage < entry->plan.stages.size(); ++stage) {
    std::vector<double> compute;
    for (size_t i = 0; i < rest.size(); ++i) {
      compute.push_back(times->compute_s[i][stage]);
      rest[i] -= times->compute_s[i][stage] + times->queue_s[i][stage];
      queue[i] += times->queue_s[i][stage];
    }
    stages.push_back(Median(compute));
  }
  entry->queue_s.push_back(Median(queue));
  entry->rest_s.push_back(Median(rest));
  return absl::OkStatus();
}

void Bench::PrintTable() const {
  std::printf(
      "| model | batch | plan | layers | predicted ms | measured ms (rounds) | error |\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n");
  std::vector<double> errors;
  double least = 0, most = 0;
  for (const Entry& entry : entries_) {
    const auto [low, high] = std::minmax_element(entry.round_s.begin(), entry.round_s.end());
    errors.push_back(std::abs(entry.error()));
    least = least == 0 ? entry.measured_s() : std::min(least, entry.measured_s());
    most = std::max(most, entry.measured_s());
    absl::PrintF("| %s | %d | %s | %s | %.1f | %.1f (%.1f–%.1f) | %+.0f %% |\n",
                 entry.model->file->name().str(), entry.batch, entry.name, Split(entry),
                 entry.predicted_s * 1e3, entry.measured_s() * 1e3, *low * 1e3, *high * 1e3,
                 entry.error() * 100);
  }
  absl::PrintF("\nMedian error %.0f %% of %d plans; measured times span %.1f times.\n\n",
               Median(errors) * 100, static_cast<int>(errors.size()), most / least);
}

// The chosen plan beside the fastest and beside the split by free memory.
void Bench::PrintChoices() const {
  std::printf(
      "| | chosen, ms | fastest, ms | rounds overlap | by free memory, ms | times faster, measured "
      "(predicted) |\n| --- | --- | --- | --- | --- | --- |\n");
  std::map<std::string, std::vector<const Entry*>> groups;
  for (const Entry& entry : entries_) groups[entry.Group()].push_back(&entry);
  for (const auto& [group, entries] : groups) {
    const Entry* chosen = nullptr;
    const Entry* by_memory = nullptr;
    const Entry* fastest = entries[0];
    for (const Entry* entry : entries) {
      if (entry->is_chosen) chosen = entry;
      if (entry->name == "by free memory") by_memory = entry;
      if (entry->measured_s() < fastest->measured_s()) fastest = entry;
    }
    if (chosen == nullptr || by_memory == nullptr) continue;
    // Their rounds overlap.
    const bool within = *std::min_element(chosen->round_s.begin(), chosen->round_s.end()) <=
                        *std::max_element(fastest->round_s.begin(), fastest->round_s.end());
    absl::PrintF("| %s | %.1f | %.1f (%s) | %s | %.1f | %.2f (%.2f) |\n", group,
                 chosen->measured_s() * 1e3, fastest->measured_s() * 1e3, fastest->name,
                 within ? "yes" : "no", by_memory->measured_s() * 1e3,
                 by_memory->measured_s() / chosen->measured_s(),
                 by_memory->predicted_s / chosen->predicted_s);
  }
}

void Bench::Explain(const Entry& entry) const {
  double hops = entry.plan.back_s;
  for (const PlannedStage& stage : entry.plan.stages) hops += stage.hop_in_s;
  absl::PrintF("%s, %s: hops predicted %.2f ms, measured %.2f ms; inboxes %.2f ms\n", entry.Group(),
               entry.name, hops * 1e3, Median(entry.rest_s) * 1e3, Median(entry.queue_s) * 1e3);
  for (size_t i = 0; i < entry.plan.stages.size(); ++i) {
    std::vector<double> compute;
    for (const std::vector<double>& round : entry.stages) compute.push_back(round[i]);
    const PlannedStage& stage = entry.plan.stages[i];
    absl::PrintF("    %s, %d layers: predicted %.2f ms, measured %.2f ms; hop in %.2f ms\n",
                 PlaceName(entry.request, stage.device), static_cast<int>(stage.layers.size()),
                 stage.compute_s * 1e3, Median(compute) * 1e3, stage.hop_in_s * 1e3);
  }
}

absl::Status Bench::Run() {
  if (auto s = OpenModels(); !s.ok()) return s;
  auto cluster = PlansCluster::Start(Machines());
  if (!cluster.ok()) return cluster.status();
  cluster_ = *std::move(cluster);
  auto report = cluster_->Report();
  if (!report.ok()) return report.status();
  report_ = *std::move(report);
  if (auto s = AddPlans(); !s.ok()) return s;
  if (options_.explain) {
    const PlanRequest& request = entries_[0].request;
    for (const PlanDevice& device : request.devices) {
      absl::PrintF(
          "%s: %d MiB free, %.1f GB/s, op %.1f + %.1f us\n", request.nodes[device.node].name,
          static_cast<int>(device.memory_free_bytes >> 20), device.speed.memory_bytes_per_s * 1e-9,
          device.speed.op_s * 1e6, device.speed.op_float_s * 2048e6);
      for (const TypeSpeed& type : device.speed.types) {
        std::string figures;
        for (const auto& speeds : {type.bytes_per_s, type.expert_bytes_per_s}) {
          for (const double each : speeds) absl::StrAppendFormat(&figures, " %.2f", each * 1e-9);
          absl::StrAppend(&figures, " GB/s;");
        }
        absl::PrintF("    %s:%s\n", type.type, figures);
      }
      for (size_t to = 0; to < request.nodes.size(); ++to) {
        if (to == device.node) continue;
        const PlanLink& link = request.Link(device.node, to);
        absl::PrintF("    to %s: round trip %.0f us, %.1f MB/s\n", request.nodes[to].name,
                     link.round_trip_s * 1e6, link.bytes_per_s * 1e-6);
      }
    }
  }
  for (uint32_t round = 0; round < options_.rounds; ++round) {
    std::fprintf(stderr, "round %u of %u…\n", round + 1, options_.rounds);
    for (Entry& entry : entries_) {
      if (auto s = Measure(&entry); !s.ok()) {
        return absl::Status(s.code(),
                            absl::StrCat(entry.Group(), ", ", entry.name, ": ", s.message()));
      }
    }
  }
  if (options_.explain) {
    for (const Entry& entry : entries_) Explain(entry);
  }
  PrintTable();
  PrintChoices();
  return absl::OkStatus();
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  strata::Options options;
  bool understood = true;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--explain") {
      options.explain = true;
    } else if (word == "--rounds" && i + 1 < argc) {
      understood &= absl::SimpleAtoi(argv[++i], &options.rounds) && options.rounds > 0;
    } else if (word == "--steps" && i + 1 < argc) {
      understood &= absl::SimpleAtoi(argv[++i], &options.steps) && options.steps > 0;
    } else {
      understood &= !absl::StartsWith(word, "-");
      options.models.push_back(word);
    }
  }
  if (!understood || options.models.size() != 2) {
    std::fprintf(stderr, "usage: plans_bench [--rounds N] [--steps N] [--explain] DENSE MOE\n");
    return 2;
  }
  const absl::Status status = strata::Bench(std::move(options)).Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "plans_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}
