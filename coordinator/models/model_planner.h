// A plan for a model on the cluster as it is now: asks every node what it measured, opens the
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
#include "coordinator/models/cluster_snapshot.h"
#include "coordinator/models/weight_locator.h"
#include "coordinator/planner/layer_costs.h"
#include "coordinator/planner/plan.h"
#include "proto/coordinator.pb.h"
#include "shard/model/model_file.h"
#include "shard/weights/weight_fetcher.h"

namespace strata {

// A context is no longer than this unless asked for: its cache takes memory on every node.
inline constexpr uint32_t kContextDefaultMax = 4096;

// The positions to plan for: `asked`, or where that is 0 the model's own, at most
// kContextDefaultMax.
uint32_t ContextFor(uint32_t asked, const ModelFile& model);

// What there turned out to be for a plan, when it was carried out: of a device's memory, or of room
// for weights on a node's disk.
struct CapacityLimit {
  std::string node_id;
  std::string device;  // empty: the disk
  uint64_t bytes = 0;
  bool wrong_numbers = false;  // the device computes them: it gets nothing, whatever it has
  bool of_disk() const { return device.empty(); }
};
// So many a load may come to know, one after the other: each is of one place that lacks room.
inline constexpr size_t kCapacityLimitsMax = 16;

// Neither copied nor moved: `inputs` points to `costs`.
struct PlannedModel {
  wire::ModelSource source;                // with the node that has the file, or had it
  std::shared_ptr<const ModelFile> model;  // shared with whoever runs it; headers only
  LayerCosts costs;
  ClusterSnapshot report;
  PlanInputs inputs;
  Plan plan;
  // For each stage of the plan the loaded one that becomes it; empty: there are none.
  std::vector<std::optional<wire::KeptStage>> kept;
  // The loaded ones that no stage of the plan keeps: to be unloaded before it is carried out, or
  // after that, where they go on until then.
  struct StaleStage {
    size_t node = 0;  // in the report
    wire::KeptStage stage;
  };
  std::vector<StaleStage> leftovers;
  // Not null: no node that answers has the file. By stage, who has its weights instead; what is to
  // be loaded anew is all there.
  std::unique_ptr<const WeightLocator> cached;
  std::vector<std::vector<NodeClient*>> holders;
  bool IsAllKept() const;

  PlannedModel() = default;
  PlannedModel(const PlannedModel&) = delete;
  PlannedModel& operator=(const PlannedModel&) = delete;

  // The node of a stage, and its client.
  const NodeReport& NodeOf(const PlannedStage& stage) const;
  // The node with the file; null: it does not answer, and no other has it.
  NodeClient* Source() const;
  // By stage, nodes besides the source that may have weights of it in their caches: those that hold
  // stages of the model, then those of the plan, then the others that answered. Where there is no
  // source, those that do have them.
  std::vector<std::vector<NodeClient*>> WeightPeers() const;
  // The CPU of a stage's node; null: it was not measured.
  const PlanDevice* CpuOf(const PlannedStage& stage) const;
};

// How the caches of stages are made that `placement` ask for.
CacheShape CacheShapeFor(const wire::PlacementOptions& placement, const ModelFile& model);
// Whether a stage that was loaded as `a` asked may stay for `b`, as far as its caches go.
bool WantSameStages(const wire::PlacementOptions& a, const wire::PlacementOptions& b,
                    const ModelFile& model);

// Bytes that are free, by the plan's devices and by its memory pools.
struct MemoryLeft {
  std::vector<uint64_t> devices, pools;
};
// Whether what is loaded anew finds room beside all that is loaded: experts that a stage leaves to
// its node's CPU in the CPU's memory. kResourceExhausted.
absl::Status FitsBeside(MemoryLeft left, const PlannedModel& planned);

// Where a load of `planned` failed with `why` for want of memory or disk: what may be planned there
// instead, of all its stages, less than was; where a device computed wrong numbers: nothing. None:
// it failed for something else.
std::optional<CapacityLimit> CapacityLimitOf(const PlannedModel& planned, const absl::Status& why);

struct PlanningOptions {
  std::string self_address;          // host:port of the node that this runs on
  WeightFetcher* fetcher = nullptr;  // outlives the call
  // Memory that will be free again before the plan is carried out.
  struct Freed {
    std::string node_id;
    std::string device;
    uint64_t bytes = 0;
  };
  std::vector<Freed> freed;
  std::vector<CapacityLimit> caps;  // no more than that is planned, whatever the nodes say
  // Stages of the model that nodes have loaded.
  enum class Loaded {
    kIgnored,  // somebody else's: what they take is not free
    kAround,   // stay where they are, if the others find room around them; else as kMatched
    kMatched,  // stay where the plan has the same stage
    kUnloaded,
  };
  Loaded loaded = Loaded::kIgnored;
  // What is loaded anew must find room beside all that is loaded, which goes on until then; and
  // nodes of `kept_out` are not used even where the others do not suffice.
  bool beside = false;
  // By node id: why it is better left alone, while the others suffice.
  std::map<std::string, std::string> kept_out;
  // Texts wait: nodes that still measure or join are waited for only where the others do not
  // suffice, and not for layers that a person has placed.
  bool skip_measurement_wait = false;
  // Not empty: any node that has this model in the same place will do in place of a source that has
  // gone, and without one the caches of all nodes.
  std::string model_id;
  std::shared_ptr<const ModelFile> known;  // its headers; null: they are read from the source
  // The headers have been read; what is not OK ends the planning. May be null.
  std::function<absl::Status(const ModelFile&)> opened;
  // For people, now and then while it waits; false ends the waiting (kCancelled).
  std::function<bool(const std::string& note)> note;
  // As `note` without one: asked often.
  std::function<bool()> should_continue;
};

// A place that a person named (`option` says where), by a node's name or id and maybe a device of
// the node, gets the name that the plan has for the node; unknown ones stay as they are.
// kInvalidArgument: several nodes of the plan are meant. A model that is loaded `again` goes by the
// first of them.
absl::Status NamePlace(const PlannedModel& planned, absl::string_view option, bool again,
                       std::string* place);

// "2 of 3 stages kept": what was, which may be less than was planned.
std::string KeptText(const std::vector<wire::StageInfo>& loaded);

// By how much of a step's time, for the objective, `to` is faster than `from`; negative: slower.
double GainOf(const Plan& from, const Plan& to);

// What such a gain is worth. Texts pause only for much; a model that is idle moves for little, or
// for fewer stages that are no slower.
enum class MoveBenefit { kNothing, kMovingIdle, kMoving };
MoveBenefit BenefitOf(double gain, bool has_fewer_stages);

// On the node that coordinates, for the members of its group. Waits for measurements under way for
// at most 20 s, and for nodes that are about to join for 5 s, unless it is in haste. kUnavailable:
// this node does not coordinate (AsLeaderChanged()), or the node with the file does not answer, and
// with a `model_id`, no other has it and layers that are to be loaded are in no cache; kNotFound,
// kInvalidArgument: the file; errors of MakePlan() and
// CutRuleFor(); kFailedPrecondition: the headers cannot be had, and why, or the file is another
// model now.
absl::StatusOr<std::unique_ptr<PlannedModel>> PlanModel(const PlanningOptions& options,
                                                        const wire::ModelSource& source,
                                                        const wire::PlacementOptions& placement);

}  // namespace strata
