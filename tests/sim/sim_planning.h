// Plans for a simulated cluster: the real planner (coordinator/planner/planner.h) on the memory
// that the nodes report and on speeds that were made up. A model of
// coordinator/models/model_planner.h, whose PlannedModel and CapacityLimitOf() are used as they
// are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/models/model_planner.h"
#include "coordinator/planner/problem/plan.h"
#include "shard/model/model_file.h"
#include "tests/sim/sim_host.h"
#include "tests/sim/sim_pipeline.h"

namespace strata {

// Of the whole run.
struct SimModel {
  std::shared_ptr<const ModelFile> file;  // shared with every plan; its header says nothing here
  LayerCosts costs;
  CutRule rule;
  CacheShape cache;
  bool trims = true;
  std::vector<size_t> sources;      // nodes that have the file
  std::vector<double> bytes_per_s;  // [nodes]
  // Break the protocol, to show that it is noticed.
  bool plans_past_memory = false;
  bool plans_on_drained_nodes = false;
};

std::shared_ptr<const ModelFile> SimModelFile();

struct SimReport {
  struct Node {
    size_t node = 0;
    uint64_t free_bytes = 0;
    std::vector<wire::StageStatus> stages;
    const SimDisk* disk = nullptr;
    bool draining = false;
  };
  std::vector<Node> nodes;  // the nodes that answered
};
void CollectSimReport(const SimCluster& cluster, size_t from, const std::vector<size_t>& nodes,
                      const std::function<void(SimReport)>& done);

struct SimPlanning {
  const SimModel* model = nullptr;
  SimReport report;
  size_t coordinator = 0;
  wire::ModelSource source;
  std::vector<CapacityLimit> limits;
  std::map<std::string, std::string> kept_out;  // by node id
  uint32_t n_seqs = 1;
  PlanScope scope;
  std::vector<PlanningOptions::FreedMemory> freed;
  bool skip_measurement_wait = false;
};
// As PlanModel().
absl::StatusOr<std::unique_ptr<PlannedModel>> PlanSimModel(const SimCluster& cluster,
                                                           const SimPlanning& planning);

}  // namespace strata
