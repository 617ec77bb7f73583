// Carries out live migrations and better plans (live_migration.h, rebalancer.h).
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/log/log.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "coordinator/models/coordinator.h"
#include "coordinator/models/live_migration.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

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
  const absl::Status loaded = next->Load(
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

// True: worth another look.
bool Coordinator::RebalanceOne(const DeploymentPtr& model) {
  OperationContext caller;
  caller.skip_measurement_wait = true;
  caller.should_continue = [this, &model] {
    return !stopping() && IsThere(model) && !AnyRecovering();
  };
  caller.note = [](const std::string&) { return true; };
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

}  // namespace strata
