// Drains, and moves to better plans.
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "tests/sim/sim_coordinator.h"

namespace strata {
namespace {

constexpr int64_t kMarkTimeoutUs = 1'000'000;
constexpr int64_t kAwaitUs = 50'000;

// Marks a node as draining. `done` learns whether it was so before; nothing: it does not answer.
void Mark(const SimCluster& cluster, size_t from, size_t node, bool draining,
          const std::function<void(std::optional<bool> before)>& done) {
  const auto before = std::make_shared<std::optional<bool>>();  // shared with the reply
  SimCall(
      cluster.processes, from, node, kMarkTimeoutUs,
      [cluster, node, draining, before](const SimReply& reply) {
        const bool is = cluster.host_of(node)->draining();
        cluster.host_of(node)->SetDraining(draining);
        reply([before, is] { *before = is; });
      },
      [before, done](bool) { done(*before); });
}

}  // namespace

absl::Status SimCoordinator::MayGoOn() const {
  if (!stopping_ && role_.is_leader()) return absl::OkStatus();
  return AsLeaderChanged(absl::UnavailableError("this node does not coordinate"));
}

void SimCoordinator::Drain(size_t node, std::function<void(absl::Status)> done) {
  RefreshLeadership();
  if (const absl::Status s = MayGoOn(); !s.ok()) return done(s);
  StartWork([this, node, done = std::move(done)] {
    const auto mark = [this, node](bool draining, const auto& then) {
      Mark(options_.cluster, options_.node, node, draining, then);
    };
    mark(true, [this, node, mark, done](std::optional<bool> before) {
      const auto end = [this, mark, done, before](const absl::Status& status) {
        const auto end_work = [this, done, status](std::optional<bool>) {
          EndWork();
          done(status);
        };
        if (!status.ok() && !before.value_or(false)) return mark(false, end_work);
        if (status.ok()) {
          ++drains_;
          rebalance_.OnChange(Now());
        }
        end_work({});
      };
      if (!before) return end(absl::UnavailableError("the node does not answer"));
      // Shared by its steps.
      DrainNext(std::make_shared<Draining>(
          Draining{.drain = NodeDrain(cluster().IdOf(node).ToHex(), models_), .end = end}));
    });
  });
}

void SimCoordinator::DrainNext(const DrainingPtr& draining) {
  NodeDrain& drain = draining->drain;
  switch (const NodeDrain::Step step = drain.Next(models_, MayGoOn()); step) {
    case NodeDrain::Step::kPlanBeside:
    case NodeDrain::Step::kPlanAnew:
      return CollectReport([this, draining, step](SimReport report) {
        NodeDrain& drain = draining->drain;
        SimPlanning planning = PlanningFor(drain.request(), std::move(report));
        planning.source = drain.model()->planned().source;
        planning.scope = drain.planning();
        if (step == NodeDrain::Step::kPlanAnew) planning.freed = drain.freed();
        auto planned = PlanSimModel(options_.cluster, planning);
        drain.OnPlanned(planned.status());
        if (planned.ok()) draining->plan = *std::move(planned);
        DrainNext(draining);
      });
    case NodeDrain::Step::kMigrate:
      return MigrateLive(
          drain.model(), std::move(draining->plan), drain.request(),
          [this] { return NodeDrain::MayMigrate(models_, MayGoOn().ok()); },
          [this, draining](const absl::Status& moved) {
            draining->drain.OnMigrated(moved, models_, MayGoOn());
            DrainNext(draining);
          });
    case NodeDrain::Step::kAwaitRequests:
      return After(kAwaitUs, [this, draining] { DrainNext(draining); });
    case NodeDrain::Step::kReload:
      return ReloadElsewhere(draining);
    case NodeDrain::Step::kEnd:
      return draining->end(drain.status());
  }
}

void SimCoordinator::ReloadElsewhere(const DrainingPtr& draining) {
  const DeploymentPtr from = draining->drain.model();
  cluster().Note(absl::StrCat("epoch ", from->epoch().counter(), " is loaded elsewhere"));
  RequeueReload(from->model_id(), absl::UnavailableError("it moves to other nodes"));
  from->Unload(AsLeaderChanged(absl::UnavailableError("the model moves")));
  const auto loading = std::make_shared<Loading>(Loading{
      .planning = {},
      .retries = LoadRetries(/*assigned=*/false, {}),
      .request = draining->drain.request(),
      .instead_of = from,
      .then =
          [this, draining, id = from->model_id()](const absl::StatusOr<DeploymentPtr>& moved) {
            reloads_.OnTried(id, moved.status());
            const bool comes_back = reloads_.entries().contains(id);
            if (comes_back) recovery_.OnRoomMade();
            if (moved.ok()) ++moves_by_reload_;
            draining->drain.OnReloaded(moved.status(), comes_back);
            DrainNext(draining);
          },
      .plan = std::move(draining->plan)});
  AfterUnloads([this, loading] { Deploy(loading); });
}

void SimCoordinator::Rebalance(const std::function<void()>& then) {
  const std::vector<DeploymentPtr> models =
      rebalance_.Begin(models_, role_.may_act() && !stopping_, Now());
  const auto end = [this, then](bool again) {
    rebalance_.End(again, flap_tracker_.NextReturn(Now()), Now());
    then();
  };
  if (models.empty()) return end(false);
  StartWork([this, model = models.front(), end] {
    const auto end_work = [this, end](bool again) {
      EndWork();
      end(again);
    };
    if (stopping_ || !models_.Has(model) || models_.AnyRecovering()) return end_work(false);
    RebalanceNext(std::make_shared<Rebalancing>(
        Rebalancing{.rebalance = ModelRebalance(*model), .model = model, .end = end_work}));
  });
}

void SimCoordinator::RebalanceNext(const RebalancingPtr& rebalancing) {
  const DeploymentPtr& model = rebalancing->model;
  switch (rebalancing->rebalance.step()) {
    case ModelRebalance::Step::kPlanAsAssigned:
    case ModelRebalance::Step::kPlanAsItIs:
    case ModelRebalance::Step::kPlanBetter:
      return CollectReport([this, rebalancing](SimReport report) {
        const DeploymentPtr& model = rebalancing->model;
        SimPlanning planning = PlanningFor(model->request(), std::move(report));
        planning.source = model->planned().source;
        planning.scope = rebalancing->rebalance.planning();
        rebalancing->rebalance.OnPlanned(PlanSimModel(options_.cluster, planning),
                                         model->active_requests());
        RebalanceNext(rebalancing);
      });
    case ModelRebalance::Step::kMove:
      cluster().Note(
          absl::StrCat("epoch ", model->epoch().counter(), rebalancing->rebalance.reason()));
      return MigrateLive(
          model, rebalancing->rebalance.TakePlan(), model->request(),
          [this, model] { return !stopping_ && models_.Has(model) && !models_.AnyRecovering(); },
          [rebalancing](const absl::Status&) { rebalancing->end(false); });
    case ModelRebalance::Step::kEnd:
      return rebalancing->end(rebalancing->rebalance.looks_again());
  }
}

// Steps in flight are not waited for, so requests are fed again: Deployment::YieldStages() would
// block.
void SimCoordinator::MigrateLive(const DeploymentPtr& from, PlannedPtr planned,
                                 const wire::LoadModelRequest& request,
                                 const std::function<bool()>& should_continue, const Then& then) {
  auto options = OptionsFor(request);
  if (!options.ok()) return then(options.status());
  options->inherited = from->engine();
  const auto next = std::make_shared<Deployment>(*std::move(options), std::move(planned));
  const auto migration = std::make_shared<LiveMigration>(from, next);  // shared by its steps
  prepared_ = next->epoch();
  const auto take_over = [this, migration, from, should_continue]() -> absl::StatusOr<bool> {
    if (!migration->MayGoOn(should_continue())) return absl::CancelledError("the load");
    migration->BeginTakeOver();
    const auto yielded = from->YieldStages(/*quiesces=*/false, [] { return true; });
    auto taken = migration->TakeOver(yielded, stopping_, &models_);
    if (taken.ok()) reclaimer_.OnDeploymentEnded(Now());
    return taken;
  };
  const auto end = [this, next, migration, then](const absl::Status& loaded) {
    prepared_.reset();
    cluster().Note(
        absl::StrCat("moved to epoch ", next->epoch().counter(), ": ", loaded.message()));
    if (loaded.ok()) ++moves_;
    if (!migration->UnloadsStaleStages(loaded, models_)) return then(loaded);
    UnloadStaleStages(next->planned(), [next, then, loaded] { then(loaded); });
  };
  Carry(next, /*stays=*/false, end, take_over);
}

}  // namespace strata
