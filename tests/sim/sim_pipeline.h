// The stages of a plan on simulated nodes, loaded, linked, fed and unloaded. A model of
// coordinator/generation/pipeline.cc, whose links and calls are gRPC's: calls take time here, too,
// so a load is made first (LoadSimStages) and becomes a Pipeline when it is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/generation/pipeline.h"
#include "tests/sim/sim_host.h"
#include "tests/sim/sim_wire.h"

namespace strata {

// The simulation as a coordinator needs it. Outlives the loads and pipelines.
struct SimCluster {
  SimProcesses* processes = nullptr;
  std::function<SimHost*(size_t node)> host_of;  // null: that node does not run
  std::function<void(const std::string&)> violation;
};

struct SimPlace {
  size_t node = 0;
  uint64_t planned_bytes = 0;
};
struct SimStages {
  wire::StageSpec spec;  // of every stage, but for its number and layers
  std::vector<LayerRange> layers;
  std::vector<SimPlace> places;                      // [stages]
  std::vector<std::optional<wire::KeptStage>> kept;  // [stages], or empty
  bool leave_on_error = false;
};

// Unloads them; a node that does not answer is called again until `gone` returns true. Then calls
// `done`.
void UnloadSimStages(const SimCluster& cluster, size_t coordinator, const SimStages& stages,
                     const std::function<bool(size_t node)>& gone, std::function<void()> done);
// The same of stages of any plans.
struct SimStaleStage {
  size_t node = 0;
  StageKey key;
};
void UnloadSimStaleStages(const SimCluster& cluster, size_t coordinator,
                          const std::vector<SimStaleStage>& stale_stages,
                          const std::function<bool(size_t node)>& gone, std::function<void()> done);

// Loads them all at once and links them from the last to the first. If one fails, the others are
// unloaded again; the status says which failed (StageOf()). With `take_over`, as of
// PipelineOptions, those that are kept are loaded after it.
struct SimLoad {
  SimStages stages;
  std::vector<wire::StageInfo> infos;
  std::shared_ptr<SimLink> first;                  // into the first stage
  std::shared_ptr<std::shared_ptr<SimLink>> back;  // from the last one
  // Set by the pipeline that it becomes.
  std::function<void(Frame)> on_frame;
  std::function<void()> on_writable;
  std::function<void()> on_broken;
  bool broken = false;
};
using SimLoadPtr = std::shared_ptr<SimLoad>;  // shared with its links
void LoadSimStages(const SimCluster& cluster, size_t coordinator, SimStages stages,
                   std::function<bool(size_t node)> gone,
                   std::function<void(absl::StatusOr<SimLoadPtr>)> done,
                   std::function<absl::Status()> take_over = nullptr);

// `unload` is called when the pipeline goes, unless it leaves its stages.
std::unique_ptr<Pipeline> MakeSimPipeline(const SimCluster& cluster, size_t coordinator,
                                          SimLoadPtr load, Pipeline::Listener* listener,
                                          std::function<void()> unload);

}  // namespace strata
