#include "coordinator/models/replica_targets.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/planner/planner.h"

namespace strata {
namespace {

// A plan that takes that much longer is worth it: all that is kept is not fed again.
constexpr double kSlowerMax = 1.25;

bool Overlap(LayerRange a, LayerRange b) { return a.begin < b.end && b.begin < a.end; }

wire::ReplicaTarget None(const std::string& why) {
  wire::ReplicaTarget target;
  target.set_why_none(why);
  return target;
}

// The plan without a node, around the stages of the others.
absl::StatusOr<Plan> PlanWithout(const PlannedModel& planned, size_t node) {
  PlanRequest request = planned.inputs.request;
  request.exclude.push_back(request.nodes[node].name);
  request.assignments.clear();
  request.with_hints = false;
  std::vector<KeptStage> kept;
  for (const PlannedStage& stage : planned.plan.stages) {
    if (request.devices[stage.device].node == node) continue;
    kept.push_back({.device = stage.device, .layers = stage.layers});
  }
  auto plan = kept.empty() ? MakePlan(request) : MakePlanAround(request, kept);
  if (!plan.ok()) return plan;
  return PreferReplicas(request, std::move(kept), HeldReplicas(planned), *std::move(plan));
}

bool HasSameEngine(const NodeReport& a, const NodeReport& b) {
  return a.info.versions().llama() == b.info.versions().llama() &&
         a.info.versions().ggml() == b.info.versions().ggml();
}

std::vector<wire::ReplicaTarget> TargetsOf(const PlannedModel& planned, const PlannedStage& stage,
                                           const Plan& without) {
  const PlanRequest& request = planned.inputs.request;
  std::vector<wire::ReplicaTarget> targets;
  for (const PlannedStage& next : without.stages) {
    if (!Overlap(next.layers, stage.layers)) continue;
    const NodeReport& node = planned.NodeOf(next);
    if (!HasSameEngine(node, planned.NodeOf(stage))) {
      return {None(node.name() + ", which would get its layers, has another version of libllama")};
    }
    wire::ReplicaTarget& target = targets.emplace_back();
    target.set_address(node.client->address());
    target.set_node(node.info.node_id());
    target.set_node_name(node.name());
    target.set_device(request.devices[next.device].name);
    // Where the plan gives a device more layers than that, PreferReplicas() makes stages of these.
    target.mutable_layers()->set_begin(std::max(next.layers.begin, stage.layers.begin));
    target.mutable_layers()->set_end(std::min(next.layers.end, stage.layers.end));
  }
  return targets;
}

}  // namespace

std::vector<KeptStage> HeldReplicas(const PlannedModel& planned) {
  const PlanRequest& request = planned.inputs.request;
  std::vector<KeptStage> held;
  for (size_t d = 0; d < request.devices.size(); ++d) {
    const PlanDevice& device = request.devices[d];
    for (const wire::HeldReplica& one :
         planned.report.nodes[planned.inputs.places[device.node]].info.replicas()) {
      if (one.model_id() != planned.model->id() || one.device() != device.name) continue;
      held.push_back({.device = d, .layers = {one.layers().begin(), one.layers().end()}});
    }
  }
  return held;
}

Plan PreferReplicas(const PlanRequest& request, std::vector<KeptStage> kept,
                    const std::vector<KeptStage>& replicas, Plan plan) {
  const size_t n_loaded = kept.size();
  for (const KeptStage& replica : replicas) {
    const bool is_missing =
        replica.layers.begin < replica.layers.end &&
        replica.layers.end <= request.costs->n_layer() &&
        absl::c_none_of(
            kept, [&](const KeptStage& one) { return Overlap(one.layers, replica.layers); });
    if (is_missing) kept.push_back(replica);
  }
  if (kept.size() == n_loaded) return plan;
  absl::StatusOr<Plan> other = MakePlanAround(request, kept);
  const bool is_good = other.ok() && SecondsOf(*other) <= kSlowerMax * SecondsOf(plan);
  return is_good ? *std::move(other) : std::move(plan);
}

std::vector<std::vector<wire::ReplicaTarget>> ReplicaTargetsOf(
    const PlannedModel& planned, absl::FunctionRef<bool()> should_continue) {
  const PlanRequest& request = planned.inputs.request;
  std::vector<std::vector<wire::ReplicaTarget>> targets(planned.plan.stages.size());
  if (request.nodes.size() < 2) return targets;
  for (size_t node = 0; node < request.nodes.size(); ++node) {
    const auto is_there = [&](const PlannedStage& stage) {
      return request.devices[stage.device].node == node;
    };
    if (absl::c_none_of(planned.plan.stages, is_there)) continue;
    if (!should_continue()) return {};
    const absl::StatusOr<Plan> without = PlanWithout(planned, node);
    for (size_t i = 0; i < targets.size(); ++i) {
      const PlannedStage& stage = planned.plan.stages[i];
      if (!is_there(stage)) continue;
      targets[i] =
          without.ok()
              ? TargetsOf(planned, stage, *without)
              : std::vector{None("its layers find no room around the other nodes' stages")};
    }
  }
  return targets;
}

}  // namespace strata
