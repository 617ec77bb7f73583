// Live migration: the stages that the next plan adds are loaded first, while the current deployment
// serves; then the next deployment takes over the requests and the stages that stay.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "coordinator/models/coordinator.h"
#include "transport/base/epoch.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

// For each stage of `planned`, the stages of `from` that have its caches. Empty: caches do not
// move, since kept stages are of some older plan, or no stage of `from` stays.
std::vector<std::vector<CacheSource>> CachesFor(const PlannedModel& planned,
                                                const Deployment& from) {
  std::vector<std::vector<CacheSource>> caches;
  for (size_t i = 0; i < planned.plan.stages.size(); ++i) {
    caches.push_back(from.CachesOf(planned.plan.stages[i].layers));
    if (caches[i].empty()) return {};
    if (i >= planned.kept.size() || !planned.kept[i]) continue;
    const wire::KeptStage &kept = *planned.kept[i], &had = caches[i].front().stage;
    if (CompareEpochs(kept.epoch(), had.epoch()) != 0 || kept.stage() != had.stage()) return {};
  }
  return caches;
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
  SteadyTime taken_over = SteadyTime::InfiniteFuture();
  bool has_requests = false;
  const auto take_over = [&]() -> absl::StatusOr<bool> {
    taken_over = SteadyTime::Now();
    const absl::StatusOr<bool> quiesced =
        from->YieldStages(/*quiesces=*/carries, caller.should_continue);
    if (!quiesced.ok()) return quiesced.status();
    absl::MutexLock lock(mu_);
    if (stopping_ || !models_.Replace(from, next)) {
      return absl::CancelledError("it was unloaded meanwhile");
    }
    next->TakeRequests(from->TransferRequests());
    reclaimer_.OnDeploymentEnded(SteadyTime::Now());
    has_requests = true;
    return *quiesced;
  };
  absl::Status loaded = next->Load(
      [&](uint32_t, const wire::LoadProgress&) {
        return taken_over != SteadyTime::InfiniteFuture() ||
               (caller.should_continue() && from->serving());
      },
      take_over);
  if (!loaded.ok()) ExcludeDevice(*next, loaded);
  if (!has_requests) return loaded;
  // Stale stages stay where the next deployment lost a stage: its recovery may keep them. They go
  // where it serves, or was unloaded meanwhile.
  if (loaded.ok() || !IsThere(next)) UnloadStaleStages(next->mutable_planned());
  if (!loaded.ok()) return loaded;
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
    rebalance_.Begin();
    if (!role_.may_act() || stopping_) return;
    for (const auto& [id, model] : models_.models()) {
      if (model->recovering()) return rebalance_.OnChange(SteadyTime::Now());  // comes first
      models.push_back(model);
    }
  }
  bool again = false;
  for (const DeploymentPtr& model : models) {
    if (model->serving()) again = RebalanceOne(model) || again;
  }
  absl::MutexLock lock(mu_);
  const SteadyTime now = SteadyTime::Now();
  rebalance_.End(again, flap_tracker_.NextReturn(now), now);
}

void Coordinator::Move(const DeploymentPtr& model, std::unique_ptr<PlannedModel> planned,
                       const OperationContext& caller) {
  const absl::Status moved = MigrateLive(model, std::move(planned), model->request(), caller);
  if (!moved.ok()) LOG(WARNING) << model->name() << " does not move: " << moved.message();
}

// True: worth another look.
bool Coordinator::RebalanceOne(const DeploymentPtr& model) {
  OperationContext caller;
  caller.skip_measurement_wait = true;
  caller.should_continue = [this, &model] {
    return !stopping() && IsThere(model) && !AnyRecovering();
  };
  caller.note = [](const std::string&) { return true; };
  const auto work = StartWork(caller);
  if (!work.ok() || !caller.should_continue() || !model->serving()) return false;
  const PlannedModel& now = model->planned();
  // Stages with experts on a CPU are not kept (coordinator/models/reusable_stages.h), and would be
  // loaded again and again.
  if (absl::c_any_of(now.plan.stages, [](const PlannedStage& s) { return s.n_cpu_moe != 0; })) {
    return false;
  }
  wire::PlacementOptions placement = model->request().placement();
  placement.set_n_ctx(now.inputs.request.cache.n_ctx);
  PlanningOptions planning = PlanningFor(caller);
  planning.known = now.model;
  planning.model_id = now.model->id();
  planning.reuse = PlanningOptions::Reuse::kAround;
  planning.limits = ExcludedDevices(planning.model_id);
  if (!placement.assign().empty()) {
    planning.beside = true;
    auto as_assigned = PlanModel(planning, now.source, placement);
    if (as_assigned.ok()) {
      if ((*as_assigned)->IsAllKept()) return false;
      LOG(WARNING) << model->name() << " moves to where its layers were assigned";
      Move(model, *std::move(as_assigned), caller);
      return false;
    }
    planning.beside = false;
    placement.clear_assign();  // a node that it names has gone
  }
  const auto as_it_is = PlanModel(planning, now.source, placement);
  planning.reuse = PlanningOptions::Reuse::kMatched;
  planning.beside = true;
  auto better = PlanModel(planning, now.source, placement);
  if (!as_it_is.ok()) return false;
  if ((*as_it_is)->report.measuring()) return true;
  if (!better.ok()) return false;
  const double gain = GainOf((*as_it_is)->plan, (*better)->plan);
  const bool idle = model->active_requests() == 0;
  const bool merges = (*better)->plan.stages.size() < now.plan.stages.size();
  const MoveBenefit worth = BenefitOf(gain, merges);
  if (worth == MoveBenefit::kNothing) return false;
  if (worth == MoveBenefit::kMovingIdle && !idle) return true;
  LOG(WARNING) << model->name() << absl::StrFormat(" moves: a step takes %.0f %% less", gain * 100)
               << (idle ? " then, and it is idle" : " with the nodes there are now");
  Move(model, *std::move(better), caller);
  return false;
}

}  // namespace strata
