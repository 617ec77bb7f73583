#include "coordinator/models/reusable_stages.h"

#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "coordinator/membership/membership_types.h"
#include "coordinator/planner/costs/layer_costs.h"
#include "coordinator/planner/planner.h"
#include "transport/base/epoch.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

constexpr uint32_t kKeepsInARowMax = 2;           // whatever the cause
constexpr uint32_t kKeepsBlamelessInARowMax = 4;  // if no kept stage is the cause

}  // namespace

std::vector<LoadedStage> TakeLoaded(const wire::PlacementOptions& placement,
                                    PlannedModel* planned) {
  PlanRequest& request = planned->inputs.request;
  std::vector<LoadedStage> loaded;
  for (size_t d = 0; d < request.devices.size(); ++d) {
    PlanDevice& device = request.devices[d];
    const size_t node = planned->inputs.places[device.node];
    for (const wire::StageStatus& stage : planned->report.nodes[node].info.stages()) {
      const LayerRange layers = {stage.layers().begin(), stage.layers().end()};
      if (stage.model_id() != planned->model->id() || stage.device() != device.name ||
          stage.state() != wire::StageStatus::SERVING || stage.n_cpu_moe() != 0 ||
          !NodeId::FromHex(stage.epoch().coordinator_id()).ok() || layers.begin >= layers.end ||
          layers.end > planned->costs.n_layer()) {
        continue;
      }
      LoadedStage& one = loaded.emplace_back();
      one.at.node = node;
      *one.at.stage.mutable_epoch() = stage.epoch();
      one.at.stage.set_stage(stage.stage());
      one.stage = {.device = d, .layers = layers};
      CacheShape shape = request.cache;
      wire::LoadModelRequest origin;
      if (!stage.origin().empty() && origin.ParseFromString(stage.origin()) &&
          !WantSameStages(origin.placement(), placement, *planned->model)) {
        one.may_stay = false;
        shape = CacheShapeFor(origin.placement(), *planned->model);
      }
      const uint64_t bytes = StageBytes(planned->costs, shape, layers, device.has_own_memory);
      device.memory_free_bytes += bytes;
      if (device.memory_pool == kOwnPool) continue;
      request.memory_pools[static_cast<size_t>(device.memory_pool)].free_bytes += bytes;
    }
  }
  return loaded;
}

absl::StatusOr<Plan> PlanWithLoaded(const PlanRequest& request,
                                    const std::vector<LoadedStage>& loaded,
                                    PlanningOptions::Reuse reuse) {
  // A plan around loaded stages leaves no experts to CPUs.
  const bool wants_cpu_moe =
      request.cpu_moe == CpuMoe::kAll &&
      absl::c_any_of(request.costs->layers, [](const LayerCost& one) { return one.n_expert > 0; });
  if (loaded.empty() || reuse != PlanningOptions::Reuse::kAround || wants_cpu_moe ||
      !request.assignments.empty()) {
    return MakePlan(request);
  }
  std::vector<KeptStage> kept;
  for (const LoadedStage& one : loaded) {
    if (one.may_stay) kept.push_back(one.stage);
  }
  if (kept.empty()) return MakePlan(request);
  auto plan = MakePlanAround(request, kept);
  return absl::IsNotFound(plan.status()) ? MakePlan(request) : plan;
}

std::vector<KeptStage> StagesThatStay(const std::vector<LoadedStage>& loaded, const Plan& plan) {
  std::vector<KeptStage> stay;
  for (const LoadedStage& one : loaded) {
    const bool stays =
        one.may_stay && absl::c_any_of(plan.stages, [&](const PlannedStage& stage) {
          return stage.device == one.stage.device && stage.layers == one.stage.layers;
        });
    if (stays) stay.push_back(one.stage);
  }
  return stay;
}

void MatchLoaded(const std::vector<LoadedStage>& loaded, PlanningOptions::Reuse reuse,
                 PlannedModel* planned) {
  planned->kept.clear();  // of an earlier try
  planned->stale_stages.clear();
  if (loaded.empty()) return;
  planned->kept.resize(planned->plan.stages.size());
  for (const LoadedStage& one : loaded) {
    bool kept = false;
    const bool stays = one.may_stay && reuse != PlanningOptions::Reuse::kUnloaded;
    for (size_t i = 0; i < planned->plan.stages.size() && stays && !kept; ++i) {
      const PlannedStage& stage = planned->plan.stages[i];
      kept = !planned->kept[i] && stage.device == one.stage.device &&
             stage.layers == one.stage.layers && stage.n_cpu_moe == 0;
      if (kept) planned->kept[i] = one.at.stage;
    }
    if (!kept) planned->stale_stages.push_back(one.at);
  }
}

bool Serves(const std::vector<wire::StageStatus>& reported, const wire::Epoch& epoch,
            size_t stage) {
  return absl::c_any_of(reported, [&](const wire::StageStatus& one) {
    return one.state() == wire::StageStatus::SERVING && one.stage() == stage &&
           CompareEpochs(one.epoch(), epoch) == 0;
  });
}

bool IsCapacityError(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status) ||
         absl::IsNotFound(status) || absl::IsFailedPrecondition(status);
}

PlanningOptions::Reuse KeptAfter(uint32_t in_a_row, const PlannedModel& lost,
                                 const absl::Status& why, absl::FunctionRef<bool()> all_serve) {
  constexpr auto kAll = PlanningOptions::Reuse::kAround;
  constexpr auto kNone = PlanningOptions::Reuse::kUnloaded;
  if (in_a_row < kKeepsInARowMax || CapacityLimitOf(lost, why)) return kAll;
  if (in_a_row >= kKeepsBlamelessInARowMax) return kNone;
  if (const std::optional<uint32_t> stage = StageOf(why)) {
    return *stage < lost.kept.size() && lost.kept[*stage] ? kNone : kAll;
  }
  return all_serve() ? kNone : kAll;
}

}  // namespace strata
