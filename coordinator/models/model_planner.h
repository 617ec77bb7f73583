// A plan for a model on the cluster as it is now: collects the measurements of all nodes, opens the
// model's headers, and lets the planner place the layers. On the node that coordinates. Blocks;
// never on the loop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/models/cluster_snapshot.h"
#include "coordinator/models/weight_locator.h"
#include "coordinator/planner/costs/layer_costs.h"
#include "coordinator/planner/problem/plan.h"
#include "proto/coordinator.pb.h"
#include "shard/model/model_file.h"
#include "shard/weights/weight_fetcher.h"

namespace strata {

// The context that is planned for first where nobody asks for one; a longer one is chosen where
// there is memory for it (coordinator/planner/context_choice.h).
inline constexpr uint32_t kContextDefaultMax = 4096;
inline constexpr uint32_t kContextChosenMax = 1u << 20;

// The positions to plan for first: `requested`, or if that is 0 the model's own, at most
// kContextDefaultMax.
uint32_t ContextFor(uint32_t requested, const ModelFile& model);

// The memory of a device, or the room for weights on a node's disk, as it turned out when a plan
// was carried out.
struct CapacityLimit {
  std::string node_id;
  std::string device;  // empty: the disk
  uint64_t bytes = 0;
  bool wrong_numbers = false;  // the device computes them: it gets nothing, whatever it has
  bool of_disk() const { return device.empty(); }
};
// Limits that one load may find, one after the other: each is of one device or disk that lacks
// room.
inline constexpr size_t kCapacityLimitsMax = 16;

// Neither copied nor moved: `inputs` points to `costs`.
struct PlannedModel {
  wire::ModelSource source;                // with the node that has the file, or had it
  std::shared_ptr<const ModelFile> model;  // shared with its users; headers only
  LayerCosts costs;
  ClusterSnapshot report;
  PlanInputs inputs;
  Plan plan;
  // For each stage of the plan the loaded stage that it keeps; empty: it keeps none.
  std::vector<std::optional<wire::KeptStage>> kept;
  // The loaded stages that the plan does not keep: to be unloaded before it is carried out, or
  // afterwards where they serve until then.
  struct StaleStage {
    size_t node = 0;  // in the report
    wire::KeptStage stage;
  };
  std::vector<StaleStage> stale_stages;
  // Not null: no node that answers has the file, and nodes' caches have the weights of all stages
  // that are loaded anew. `holders`: by stage, the nodes that have its weights.
  std::unique_ptr<const WeightLocator> cached;
  std::vector<std::vector<NodeClient*>> holders;
  bool IsAllKept() const;

  PlannedModel() = default;
  PlannedModel(const PlannedModel&) = delete;
  PlannedModel& operator=(const PlannedModel&) = delete;

  // The node of a stage, and its client.
  const NodeReport& NodeOf(const PlannedStage& stage) const;
  // The node with the file; null: it does not answer, and no other has it, or the file is on a
  // server.
  NodeClient* Source() const;
  // By stage, nodes besides the source that may have weights of it in their caches: those that hold
  // stages of the model, then those of the plan, then the others that answered. Where there is no
  // source, those that do have them.
  std::vector<std::vector<NodeClient*>> WeightPeers() const;
  // The CPU of a stage's node; null: it was not measured.
  const PlanDevice* CpuOf(const PlannedStage& stage) const;
};

// The shape of the caches that `placement` asks for.
CacheShape CacheShapeFor(const wire::PlacementOptions& placement, const ModelFile& model);
// Whether a stage that was loaded with `a` may be kept for `b`, as far as its caches are concerned.
bool WantSameStages(const wire::PlacementOptions& a, const wire::PlacementOptions& b,
                    const ModelFile& model);

// Free bytes, by the plan's devices and by its memory pools.
struct MemoryLeft {
  std::vector<uint64_t> devices, pools;
};
// OK: the stages that are loaded anew find room beside all that is loaded, and the experts that a
// stage leaves to its node's CPU in the CPU's memory. Else kResourceExhausted.
absl::Status FitsBeside(MemoryLeft left, const PlannedModel& planned);

// Where a load of `planned` failed with `why` for want of memory or disk: the most that may be
// planned there instead, for all stages together, which is less than was planned; where a device
// computed wrong numbers: a limit of 0. Nothing: the load failed for another reason.
std::optional<CapacityLimit> CapacityLimitOf(const PlannedModel& planned, const absl::Status& why);

struct PlanningOptions {
  // The report of all nodes; blocks.
  std::function<absl::StatusOr<ClusterSnapshot>()> collect;
  WeightFetcher* fetcher = nullptr;  // outlives the call
  // Memory that will be free before the plan is carried out.
  struct FreedMemory {
    std::string node_id;
    std::string device;
    uint64_t bytes = 0;
  };
  std::vector<FreedMemory> freed;
  std::vector<CapacityLimit> limits;  // no more is planned there, whatever the nodes report
  // Stages of the model that nodes have loaded.
  enum class Reuse {
    kIgnored,  // of another coordinator: their memory is not free
    kAround,   // stay where they are, if the others find room around them; else as kMatched
    kMatched,  // stay where the plan has the same stage
    kUnloaded,
  };
  Reuse reuse = Reuse::kIgnored;
  // Of the cache, that times are predicted for; 0: the whole context.
  uint32_t positions = 0;
  // New stages must find room beside all that is loaded, which serves until then; and nodes of
  // `kept_out` are not used even where the others do not suffice.
  bool beside = false;
  // By node id: why the node is not used as long as the others suffice.
  std::map<std::string, std::string> kept_out;
  // Since requests wait: nodes that still measure or join are waited for only where the others do
  // not suffice, and not for layers that a person has placed; those that are suspected are not.
  bool skip_measurement_wait = false;
  // Not empty: if the source has gone, any node that has this model at the same path replaces it,
  // and without such a node the caches of all nodes.
  std::string model_id;
  std::shared_ptr<const ModelFile> known;  // its headers; null: they are read from the source
  // Called when the headers have been read; an error ends the planning. May be null.
  std::function<absl::Status(const ModelFile&)> on_headers;
  // A message for people, now and then while it waits; false ends the waiting (kCancelled).
  std::function<bool(const std::string& note)> note;
  // As `note`, without a message; called often.
  std::function<bool()> should_continue;
  // Waits for that long, or until this node stops.
  std::function<void(absl::Duration)> pause;
};

// The scope in which a model that is loaded is planned again.
struct PlanScope {
  PlanningOptions::Reuse reuse = PlanningOptions::Reuse::kIgnored;
  bool beside = false;  // as of PlanningOptions
  // As of PlanningOptions, for plans that are compared with each other; unset: as requests have it
  // now.
  std::optional<uint32_t> positions = std::nullopt;
};

// Replaces the node in `place`, which a person gave in `option` by a node's name or id and perhaps
// a device, by the plan's name of that node; unknown ones stay as they are. kInvalidArgument:
// several nodes of the plan are meant. For a model that is loaded `again` the first of them counts.
absl::Status NamePlace(const PlannedModel& planned, absl::string_view option, bool again,
                       std::string* place);

// "2 of 3 stages kept": as loaded, which may be fewer than planned.
std::string KeptText(const std::vector<wire::StageInfo>& loaded);

// By how much of a step's time, for the objective, `to` is faster than `from`; negative: slower.
double GainOf(const Plan& from, const Plan& to);

// Whether such a gain is worth a move. Requests pause only for a large gain; a model that is idle
// moves for a small one, or for fewer stages that are no slower.
enum class MoveBenefit { kNothing, kMovingIdle, kMoving };
MoveBenefit BenefitOf(double gain, bool has_fewer_stages);

// On the node that coordinates, for the members of its group. Waits for measurements in progress
// for at most 20 s, for nodes that are about to join for 5 s, and for nodes that are suspected
// until they are heard again or gone, unless `skip_measurement_wait`. kUnavailable: this node does
// not coordinate (AsLeaderChanged()), or the node with the file does not answer, and with a
// `model_id`, no other has it and layers that are to be loaded are in no cache; kNotFound,
// kInvalidArgument: the file; errors of MakePlan() and CutRuleFor(); kFailedPrecondition: the
// headers cannot be had, and why, or the file is another model now.
absl::StatusOr<std::unique_ptr<PlannedModel>> PlanModel(const PlanningOptions& options,
                                                        const wire::ModelSource& source,
                                                        const wire::PlacementOptions& placement);

}  // namespace strata
