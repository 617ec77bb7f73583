// Carries out live migrations and better plans (live_migration.h, rebalancer.h).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/log/log.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "coordinator/generation/pipeline.h"
#include "coordinator/models/coordinator.h"
#include "coordinator/models/live_migration.h"
#include "coordinator/models/replica_targets.h"
#include "proto/node.pb.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

constexpr absl::Duration kReplicateAgainAfter = absl::Seconds(30);
// For a node to answer what it is told; a recovery waits meanwhile.
constexpr int64_t kTellMs = 500;

// Has the node of `target` fetch the weights of its layers of a stage, if it wants to.
void FetchAhead(const PlannedModel& planned, size_t stage, const wire::ReplicaTarget& target,
                bool unverified) {
  const auto at = absl::c_find_if(planned.report.nodes, [&](const NodeReport& node) {
    return node.client != nullptr && node.info.node_id() == target.node();
  });
  const NodeClient* const source = planned.Source();
  if (at == planned.report.nodes.end() || (source != nullptr && source->id() == at->client->id())) {
    return;
  }
  wire::FetchWeightsRequest request;
  wire::StageSpec* const spec = request.mutable_spec();
  spec->set_model_id(planned.model->id());
  spec->set_model_path(planned.source.path());
  *spec->mutable_layers() = target.layers();
  spec->set_unverified(unverified);
  const std::vector<std::vector<NodeClient*>> peers = planned.WeightPeers();
  AddWeightSources({.source = source,
                    .from_caches = source == nullptr,
                    .remote = planned.source.remote(),
                    .peers = peers[stage]},
                   at->client->id(), spec);
  at->client->FetchWeights(request, kTellMs).IgnoreError();  // most nodes do not want to
}

std::string CarriedText(const Pipeline::Carried& carried) {
  if (carried.contents != SlotContents::kAsBefore) return "they are fed again";
  constexpr double kMib = 1 << 20;
  return absl::StrFormat("with their caches, %.1f MiB before the pause and %.1f MiB in it",
                         carried.bytes_before / kMib, carried.bytes_after / kMib);
}

}  // namespace

absl::Status Coordinator::MigrateLive(const DeploymentPtr& from,
                                      std::unique_ptr<PlannedModel> planned,
                                      const wire::LoadModelRequest& request,
                                      const OperationContext& caller) {
  auto options = OptionsFor(request);
  if (!options.ok()) return options.status();
  options->inherited = from->engine();
  options->caches = CachesFor(*planned, *from);
  const bool carries = !options->caches.empty();
  const auto next = std::make_shared<Deployment>(*std::move(options), std::move(planned));
  {
    absl::MutexLock lock(mu_);
    prepared_ = next->epoch();
  }
  const absl::Cleanup done = [this] {
    absl::MutexLock lock(mu_);
    prepared_.reset();
  };
  const SteadyTime begin = SteadyTime::Now();
  SteadyTime taken_over;
  LiveMigration migration(from, next);
  const auto take_over = [&]() -> absl::StatusOr<bool> {
    taken_over = SteadyTime::Now();
    migration.BeginTakeOver();
    const absl::StatusOr<bool> quiesced =
        from->YieldStages(/*quiesces=*/carries, caller.should_continue);
    absl::MutexLock lock(mu_);
    const absl::StatusOr<bool> taken = migration.TakeOver(quiesced, stopping_, &models_);
    if (taken.ok()) reclaimer_.OnDeploymentEnded(SteadyTime::Now());
    return taken;
  };
  absl::Status loaded = next->Load(
      [&](uint32_t, const wire::LoadProgress&) {
        return migration.MayGoOn(caller.should_continue());
      },
      take_over);
  if (!loaded.ok()) ExcludeDevice(*next, loaded);
  const auto unloads_stale = [&] {
    absl::MutexLock lock(mu_);
    return migration.UnloadsStaleStages(loaded, models_);
  };
  if (unloads_stale()) UnloadStaleStages(next->mutable_planned());
  if (!loaded.ok()) return loaded;
  ReplicateSoon();
  LOG(WARNING) << next->name() << " has moved: loaded beside in "
               << absl::ToInt64Milliseconds(taken_over - begin) << " ms, its requests paused for "
               << absl::ToInt64Milliseconds(SteadyTime::Now() - taken_over) << " ms ("
               << KeptText(next->stages()) << "); requests that go on: " << next->active_requests()
               << ", " << CarriedText(next->carried());
  return absl::OkStatus();
}

void Coordinator::Rebalance() {
  std::vector<DeploymentPtr> models;
  {
    absl::MutexLock lock(mu_);
    models = rebalance_.Begin(models_, role_.may_act() && !stopping_, SteadyTime::Now());
  }
  bool again = false;
  for (const DeploymentPtr& model : models) again = RebalanceOne(model) || again;
  absl::MutexLock lock(mu_);
  const SteadyTime now = SteadyTime::Now();
  rebalance_.End(again, flap_tracker_.NextReturn(now), now);
}

Coordinator::OperationContext Coordinator::WhileItServes(const DeploymentPtr& model) {
  OperationContext caller;
  caller.skip_measurement_wait = true;
  caller.should_continue = [this, model] {
    return !stopping() && IsThere(model) && !AnyRecovering();
  };
  caller.note = [](const std::string&) { return true; };
  return caller;
}

// True: worth another look.
bool Coordinator::RebalanceOne(const DeploymentPtr& model) {
  const OperationContext caller = WhileItServes(model);
  const auto work = StartWork(caller);
  if (!work.ok() || !caller.should_continue()) return false;
  for (ModelRebalance rebalance(*model);;) {
    switch (rebalance.step()) {
      case ModelRebalance::Step::kPlanAsAssigned:
      case ModelRebalance::Step::kPlanAsItIs:
      case ModelRebalance::Step::kPlanBetter:
        rebalance.OnPlanned(PlanModel(PlanningAgain(*model, rebalance.planning(), caller),
                                      model->planned().source, rebalance.placement()),
                            model->active_requests());
        break;
      case ModelRebalance::Step::kMove: {
        LOG(WARNING) << model->name() << rebalance.reason();
        const absl::Status moved =
            MigrateLive(model, rebalance.TakePlan(), model->request(), caller);
        if (!moved.ok()) LOG(WARNING) << model->name() << " does not move: " << moved.message();
        return false;
      }
      case ModelRebalance::Step::kEnd:
        return rebalance.looks_again();
    }
  }
}

void Coordinator::ReplicateSoon() {
  absl::MutexLock lock(mu_);
  replicate_at_ = SteadyTime::Now() + kReplicateAfter;
}

void Coordinator::Replicate() {
  std::vector<DeploymentPtr> models;
  {
    absl::MutexLock lock(mu_);
    replicate_at_ = SteadyTime::InfiniteFuture();
    if (!role_.may_act() || stopping_) return;
    for (const auto& [id, model] : models_.models()) {
      if (model->serving()) models.push_back(model);
    }
  }
  bool all = true;
  for (const DeploymentPtr& model : models) all = ReplicateOne(model) && all;
  if (all) return;
  absl::MutexLock lock(mu_);
  replicate_at_ = std::min(replicate_at_, SteadyTime::Now() + kReplicateAgainAfter);
}

bool Coordinator::ReplicateOne(const DeploymentPtr& model) {
  const OperationContext caller = WhileItServes(model);
  if (!caller.should_continue()) return true;
  wire::PlacementOptions placement = model->request().placement();
  placement.set_n_ctx(model->planned().inputs.request.cache.n_ctx);
  placement.clear_assign();
  const auto planned =
      PlanModel(PlanningAgain(*model, {.reuse = PlanningOptions::Reuse::kAround}, caller),
                model->planned().source, placement);
  // Targets are for the stages as they are: not where some have experts on a CPU.
  if (!planned.ok() || !(*planned)->IsAllKept()) return planned.ok();
  const auto targets = ReplicaTargetsOf(**planned, caller.should_continue);
  bool all = !(*planned)->report.measuring();
  for (size_t i = 0; i < targets.size() && caller.should_continue(); ++i) {
    const wire::KeptStage& stage = *(*planned)->kept[i];
    wire::SetReplicaTargetsRequest request;
    *request.mutable_epoch() = stage.epoch();
    request.set_stage(stage.stage());
    request.mutable_targets()->Assign(targets[i].begin(), targets[i].end());
    const absl::Status told =
        (*planned)->NodeOf((*planned)->plan.stages[i]).client->SetReplicaTargets(request, kTellMs);
    all = all && (told.ok() || absl::IsUnimplemented(told));  // by an older version
    for (const wire::ReplicaTarget& target : targets[i]) {
      if (!caller.should_continue()) break;
      FetchAhead(**planned, i, target, placement.unverified());
    }
  }
  return all;
}

}  // namespace strata
