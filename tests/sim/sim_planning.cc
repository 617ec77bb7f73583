#include "tests/sim/sim_planning.h"

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/models/reusable_stages.h"
#include "coordinator/planner/costs/layer_costs.h"
#include "tests/coordinator/planner/planner_instance.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"
#include "transport/base/epoch.h"

namespace strata {
namespace {

constexpr int64_t kAnswerUs = 1'000'000;

// The bytes that were planned for a stale stage.
uint64_t BytesOf(const std::vector<LoadedStage>& loaded, const PlannedModel::StaleStage& left,
                 const PlannedModel& planned) {
  for (const LoadedStage& one : loaded) {
    if (one.at.node != left.node || one.at.stage.stage() != left.stage.stage() ||
        CompareEpochs(one.at.stage.epoch(), left.stage.epoch()) != 0) {
      continue;
    }
    return StageBytes(planned.costs, planned.inputs.request.cache, one.stage.layers,
                      /*has_own_memory=*/false);
  }
  return 0;
}

// As LimitDisks() in coordinator/models/model_planner.cc.
void LimitDisk(const SimDisk& disk, const SimModel& model, const CapacityLimit& limit,
               PlanNode* node) {
  const bool is_first = node->fetch_bytes.empty();
  node->disk_free_bytes = is_first ? limit.bytes : std::min(node->disk_free_bytes, limit.bytes);
  if (!is_first) return;
  node->fetch_bytes.push_back(0);
  for (uint32_t layer = 0; layer < model.costs.n_layer(); ++layer) {
    const uint64_t bytes = disk.layers.contains(layer) ? 0 : disk.layer_bytes;
    node->fetch_bytes.push_back(node->fetch_bytes.back() + bytes);
  }
}

}  // namespace

std::shared_ptr<const ModelFile> SimModelFile() {
  static const auto* const file = [] {
    const std::string path = testing::MakeTestFolder() + "/model.gguf";
    testing::WriteFile(path, testing::TinyLlama({.n_layer = 1}).Build());
    auto opened = ModelFile::Open(path);
    CHECK(opened.ok()) << opened.status();
    return new std::shared_ptr<const ModelFile>(*std::move(opened));  // shared by all runs
  }();
  return *file;
}

void CollectSimReport(const SimCluster& cluster, size_t from, const std::vector<size_t>& nodes,
                      const std::function<void(SimReport)>& done) {
  struct Collecting {
    SimReport report;
    size_t left = 0;
  };
  const auto all = std::make_shared<Collecting>();  // shared by the calls
  all->left = nodes.size();
  for (const size_t node : nodes) {
    SimCall(
        cluster.processes, from, node, kAnswerUs,
        [cluster, node, all](const SimReply& reply) {
          const SimHost& host = *cluster.host_of(node);
          SimReport::Node reported = {.node = node,
                                      .free_bytes = host.free_bytes(),
                                      .stages = host.Stages(),
                                      .disk = host.disk(),
                                      .draining = host.draining()};
          reply([all, reported] { all->report.nodes.push_back(reported); });
        },
        [all, done](bool) {
          if (--all->left > 0) return;
          std::sort(all->report.nodes.begin(), all->report.nodes.end(),
                    [](const auto& a, const auto& b) { return a.node < b.node; });
          done(std::move(all->report));
        },
        /*repeatable=*/true);
  }
}

absl::StatusOr<std::unique_ptr<PlannedModel>> PlanSimModel(const SimCluster& cluster,
                                                           const SimPlanning& planning) {
  const SimModel& model = *planning.model;
  const ClusterSim& nodes = cluster.processes->cluster();
  auto planned = std::make_unique<PlannedModel>();
  planned->model = model.file;
  planned->costs = model.costs;
  planned->source = planning.source;
  PlanRequest& request = planned->inputs.request;
  MemoryLeft left;
  bool has_source = false;
  std::string other_source;
  for (const SimReport::Node& reported : planning.report.nodes) {
    const std::string id = nodes.IdOf(reported.node).ToHex();
    if (reported.node == planning.coordinator) request.coordinator_node = request.nodes.size();
    has_source |= id == planned->source.node();
    if (std::count(model.sources.begin(), model.sources.end(), reported.node) > 0)
      other_source = id;
    NodeReport& report = planned->report.nodes.emplace_back();
    CHECK(absl::HexStringToBytes(id, report.seen.mutable_record()->mutable_node_id()));
    report.seen.mutable_record()->set_name(absl::StrCat("node", reported.node));
    report.info.set_node_id(id);
    for (const wire::StageStatus& stage : reported.stages) *report.info.add_stages() = stage;
    PlanDevice device;
    device.node = request.nodes.size();
    device.name = "CPU";
    device.memory_free_bytes = reported.free_bytes;
    device.speed = testing::SpeedOf(model.bytes_per_s[reported.node]);
    for (const PlanningOptions::FreedMemory& freed : planning.freed) {
      if (freed.node_id == id) device.memory_free_bytes += freed.bytes;
    }
    if (model.plans_past_memory) device.memory_free_bytes *= 2;
    planned->inputs.places.push_back(request.nodes.size());
    PlanNode& node = request.nodes.emplace_back();
    node.name = absl::StrCat("node", reported.node);
    if (const auto why = planning.kept_out.find(id); why != planning.kept_out.end()) {
      node.kept_out = why->second;
    }
    if (reported.draining && !model.plans_on_drained_nodes) request.exclude.push_back(node.name);
    left.devices.push_back(device.memory_free_bytes);
    request.devices.push_back(std::move(device));
  }
  if (!has_source && !other_source.empty()) planned->source.set_node(other_source);
  if (!has_source && other_source.empty()) {
    return absl::UnavailableError("no node that answers has the model's file");
  }
  request.costs = &planned->costs;
  request.rule = model.rule;
  request.cache = model.cache;
  request.cache.n_seqs = planning.n_seqs;
  request.with_hints = false;
  request.links.assign(request.nodes.size() * request.nodes.size(),
                       {.round_trip_s = 1e-3, .bytes_per_s = 125e6});
  std::vector<LoadedStage> loaded;
  if (planning.scope.reuse != PlanningOptions::Reuse::kIgnored) {
    wire::PlacementOptions placement;
    placement.set_n_seqs(planning.n_seqs);
    loaded = TakeLoaded(placement, planned.get());
  }
  for (PlanDevice& device : request.devices) {
    const std::string& id = planned->report.nodes[device.node].info.node_id();
    for (const CapacityLimit& limit : planning.limits) {
      if (limit.node_id != id) continue;
      if (limit.device == device.name) {
        device.memory_free_bytes = std::min(device.memory_free_bytes, limit.bytes);
      } else if (limit.of_disk()) {
        LimitDisk(*planning.report.nodes[device.node].disk, model, limit,
                  &request.nodes[device.node]);
      }
    }
  }
  absl::StatusOr<Plan> plan = PlanWithLoaded(request, loaded, planning.scope.reuse);
  if (!plan.ok() && !planning.kept_out.empty() && !planning.scope.beside) {
    for (PlanNode& node : request.nodes) node.kept_out.clear();
    plan = PlanWithLoaded(request, loaded, planning.scope.reuse);
  }
  if (!plan.ok()) return plan.status();
  planned->plan = *std::move(plan);
  MatchLoaded(loaded, planning.scope.reuse, planned.get());
  if (planning.scope.beside) {
    if (auto s = FitsBeside(std::move(left), *planned); !s.ok()) return s;
  }
  for (const SimReport::Node& reported : planning.report.nodes) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < planned->plan.stages.size(); ++i) {
      const PlannedStage& stage = planned->plan.stages[i];
      const size_t place = request.devices[stage.device].node;
      const bool kept = !planned->kept.empty() && planned->kept[i].has_value();
      if (planning.report.nodes[place].node == reported.node && !kept)
        bytes += stage.memory_bytes();
    }
    uint64_t free_then = reported.free_bytes;
    for (const PlannedModel::StaleStage& stale : planned->stale_stages) {
      if (planning.report.nodes[stale.node].node == reported.node && !planning.scope.beside)
        free_then += BytesOf(loaded, stale, *planned);
    }
    for (const PlanningOptions::FreedMemory& freed : planning.freed) {
      if (freed.node_id == nodes.IdOf(reported.node).ToHex()) free_then += freed.bytes;
    }
    if (bytes > free_then) {
      cluster.violation(absl::StrCat("a plan puts ", bytes, " bytes on node ", reported.node,
                                     ", which reported ", reported.free_bytes));
    }
  }
  return planned;
}

}  // namespace strata
