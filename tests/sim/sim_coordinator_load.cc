// Loads and recoveries.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/models/reusable_stages.h"
#include "tests/sim/sim_coordinator.h"
#include "transport/base/epoch.h"

namespace strata {
namespace {

bool AllServe(const Deployment& lost, const SimReport& report, const ClusterSim& cluster) {
  const PlannedModel& planned = lost.planned();
  for (size_t i = 0; i < planned.plan.stages.size(); ++i) {
    const std::string& id = planned.NodeOf(planned.plan.stages[i]).info.node_id();
    if (std::ranges::none_of(report.nodes, [&](const SimReport::Node& node) {
          return cluster.IdOf(node.node).ToHex() == id && Serves(node.stages, lost.epoch(), i);
        })) {
      return false;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<Deployment::Options> SimCoordinator::OptionsFor(
    const wire::LoadModelRequest& request) {
  const absl::StatusOr<ClusterEpoch> epoch =
      cluster().membership(options_.node).NextEpoch(now_us());
  cluster().Touch(options_.node);
  if (!epoch.ok()) return epoch.status();
  Deployment::Options options;
  options.epoch.set_counter(epoch->counter);
  options.epoch.set_coordinator_id(epoch->coordinator.ToHex());
  options.request = request;
  options.self_node = cluster().IdOf(options_.node).ToHex();
  options.engine = options_.engine;
  options.now = [this] { return Now(); };
  if (options_.forgets_bounds) options.engine.policy.queue_max *= 8;
  options.broken = [this] {
    recovery_.OnLost();
    After(0, [this] { RunRecoveryLoop(); });
  };
  options.build = [this](const PipelineOptions& build, Pipeline::Listener* listener,
                         const Pipeline::Progress&) -> absl::StatusOr<std::unique_ptr<Pipeline>> {
    built_ = true;
    if (build.take_over != nullptr && has_taken_over_) {
      if (const auto taken = build.take_over(); !taken.ok()) return taken.status();
    }
    if (!loaded_.ok()) return loaded_.status();
    const SimLoadPtr load = *loaded_;
    if (CompareEpochs(build.epoch, load->stages.spec.epoch()) != 0) {
      options_.cluster.violation("a deployment is built from another one's stages");
    }
    // Its destructor unloads, which takes time here.
    const auto unload = [this, stages = load->stages] {
      ++unloads_;
      UnloadSimStages(
          options_.cluster, options_.node, stages, [this](size_t node) { return IsGone(node); },
          [this] {
            if (--unloads_ > 0) return;
            for (const auto& fn : std::exchange(after_unloads_, {})) fn();
            NextWork();
          });
    };
    return MakeSimPipeline(options_.cluster, options_.node, load, listener, unload);
  };
  return options;
}

SimPlanning SimCoordinator::PlanningFor(const wire::LoadModelRequest& request,
                                        SimReport report) const {
  SimPlanning planning;
  planning.model = options_.model;
  planning.report = std::move(report);
  planning.coordinator = options_.node;
  planning.source = request.source();
  planning.kept_out = flap_tracker_.ExcludedNodes(Now());
  planning.n_seqs = request.placement().n_seqs();
  return planning;
}

void SimCoordinator::UnloadStaleStages(const PlannedModel& planned, std::function<void()> then) {
  std::vector<SimStaleStage> stale_stages;
  for (const PlannedModel::StaleStage& left : planned.stale_stages) {
    const auto node = NodeId::FromHex(planned.report.nodes[left.node].info.node_id());
    stale_stages.push_back({.node = cluster().NumberOf(*node),
                            .key = StageKeyOf(left.stage.epoch(), left.stage.stage())});
  }
  UnloadSimStaleStages(
      options_.cluster, options_.node, stale_stages, [this](size_t node) { return IsGone(node); },
      std::move(then));
}

void SimCoordinator::Carry(const DeploymentPtr& deployment, bool stays, const Then& then,
                           const Deployment::TakeOver& take_over) {
  const PlannedModel& planned = deployment->planned();
  SimStages stages;
  // As Deployment::Build() and Pipeline::SpecOf() do.
  stages.spec.set_model_id(deployment->model_id());
  *stages.spec.mutable_epoch() = deployment->epoch();
  stages.spec.set_n_stages(static_cast<uint32_t>(planned.plan.stages.size()));
  const CacheShape& cache = planned.inputs.request.cache;
  stages.spec.set_n_ctx(cache.n_ctx);
  stages.spec.set_n_seq_max(cache.n_seqs);
  stages.spec.set_n_batch(std::min(cache.n_ctx, 512u));
  stages.spec.mutable_cache()->set_kv_cells(static_cast<uint32_t>(cache.cells()));
  if (!options_.model->trims) stages.spec.mutable_cache()->set_checkpoints(1);
  stages.spec.set_origin(deployment->Origin().SerializeAsString());
  for (const PlannedStage& stage : planned.plan.stages) {
    stages.layers.push_back(stage.layers);
    const std::string& id = planned.NodeOf(stage).info.node_id();
    const absl::StatusOr<NodeId> node = NodeId::FromHex(id);
    stages.places.push_back(
        {.node = cluster().NumberOf(*node), .planned_bytes = stage.memory_bytes()});
  }
  stages.kept = planned.kept;
  stages.leave_on_error = stays;
  // Nothing: it has not come to it. Shared by the steps.
  const auto taken = std::make_shared<std::optional<absl::StatusOr<bool>>>();
  std::function<absl::Status()> take;
  Deployment::TakeOver has_taken;
  if (take_over != nullptr) {
    take = [taken, take_over] { return taken->emplace(take_over()).status(); };
    has_taken = [taken] { return **taken; };
  }
  LoadSimStages(
      options_.cluster, options_.node, stages, [this](size_t node) { return IsGone(node); },
      [this, deployment, stages, then, taken, has_taken](absl::StatusOr<SimLoadPtr> load) {
        loaded_ = load;
        built_ = false;
        has_taken_over_ = taken->has_value();
        absl::Status status =
            deployment->Load([](uint32_t, const wire::LoadProgress&) { return true; }, has_taken);
        loaded_ = absl::UnknownError("nothing is loaded");
        if (built_ || !load.ok()) return then(status);
        // It was unloaded while it loaded, and does not know its stages.
        (*load)->first->Close();
        UnloadSimStages(
            options_.cluster, options_.node, stages, [this](size_t node) { return IsGone(node); },
            [then, status] { then(status); });
      },
      take);
}

// At each tick, too.
void SimCoordinator::RunRecoveryLoop() {
  if (stopping_ || recovering_) return;
  const bool rebalances = Now() >= rebalance_.at();
  if (!recovery_.is_due() && Now() < recovery_.next_at() && !rebalances) return;
  recovering_ = true;
  RecoverySchedule::Round round = recovery_.Begin(models_, reloads_, role_.may_act(), Now());
  const auto then = [this, rebalances, reload = std::move(round.reload)] {
    ReloadNext(reload, [this, rebalances](bool deferred) {
      const auto end = [this, deferred] { EndRecovery(deferred); };
      if (!rebalances) return end();
      Rebalance(end);
    });
  };
  if (round.recover.empty()) return then();
  Recover(round.recover.front(), then);
}

void SimCoordinator::EndRecovery(bool deferred) {
  recovering_ = false;
  recovery_.End(models_, reloads_, role_.is_leader(), deferred, Now());
  After(0, [this] { RunRecoveryLoop(); });
  if (recovery_.next_at() == SteadyTime::InfiniteFuture()) return;
  After(absl::ToInt64Microseconds(std::max(recovery_.next_at() - Now(), absl::ZeroDuration())),
        [this] { RunRecoveryLoop(); });
}

void SimCoordinator::ReloadNext(std::vector<std::string> ids,
                                const std::function<void(bool deferred)>& then) {
  if (models_.AnyRecovering()) return then(/*deferred=*/!ids.empty());
  while (!ids.empty() && !reloads_.entries().contains(ids.back())) ids.pop_back();
  if (ids.empty()) return then(/*deferred=*/false);
  const std::string id = ids.back();
  ids.pop_back();
  LoadNow(reloads_.entries().at(id).request, /*is_recovery=*/true,
          [this, id, ids, then](const absl::StatusOr<uint64_t>& loaded) {
            const DeploymentPtr there = model();
            if (loaded.ok() && there != nullptr && !reloads_.entries().contains(id)) {
              // It was unloaded meanwhile.
              models_.Remove(there);
              reclaimer_.OnDeploymentEnded(Now());
              there->Unload(absl::UnavailableError("the model was unloaded"));
            }
            reloads_.OnTried(id, loaded.status());
            if (loaded.ok()) {
              ++reload_count_;
              cluster().Note("the model is loaded again");
            }
            ReloadNext(ids, then);
          });
}

void SimCoordinator::Load(size_t source, bool hold, LeaseThen then) {
  wire::LoadModelRequest request;
  request.mutable_source()->set_node(cluster().IdOf(source).ToHex());
  request.mutable_placement()->set_n_seqs(options_.model->cache.n_seqs);
  request.set_model_id(options_.model->file->id());
  request.set_hold(hold);
  LoadNow(request, /*is_recovery=*/false, std::move(then));
}

void SimCoordinator::Release(uint64_t lease) {
  if (options_.forgets_leases) return;
  const DeploymentPtr last = models_.Release(lease);
  if (last == nullptr) return;
  cluster().Note("the model goes with its last lease");
  reclaimer_.OnDeploymentEnded(Now());
  last->Unload(absl::UnavailableError("the model was unloaded"));
  recovery_.OnRoomMade();
}

bool SimCoordinator::RequeueReload(const std::string& id, const absl::Status& why) {
  const auto pin = models_.pins().find(id);
  if (pin == models_.pins().end()) return false;
  reloads_.Add(id, pin->second, why);
  return true;
}

void SimCoordinator::LoadNow(const wire::LoadModelRequest& request, bool is_recovery,
                             LeaseThen then) {
  RefreshLeadership();
  if (!is_leader()) return then(absl::UnavailableError("this node does not coordinate"));
  reloads_.BeginLoad(request.model_id());
  StartWork([this, request, is_recovery, then = std::move(then)] {
    const auto end = [this, request, then](absl::StatusOr<uint64_t> lease) {
      reloads_.EndLoad(request.model_id());
      EndWork();
      then(lease);
    };
    if (stopping_ || !is_leader()) return end(absl::UnavailableError("not any more"));
    bool comes_back = false;
    if (const DeploymentPtr there = model(); there != nullptr) {
      if (there->recovering()) return end(absl::UnavailableError("its layers are placed again"));
      if (there->serving()) {
        if (is_recovery && !reloads_.entries().contains(request.model_id())) {
          return end(absl::CancelledError("the model was unloaded"));
        }
        const uint64_t lease = *models_.Join(there, request);
        if (!is_recovery && StaysLoaded(request)) decisions_.Keep(models_.pins().begin()->second);
        return end(lease);
      }
      // Failed: it makes room for this.
      comes_back = there->lost_a_stage() && RequeueReload(there->model_id(), there->why());
      models_.Remove(there);
      there->Unload(absl::UnavailableError("the model is loaded again"));
    }
    const auto loading = std::make_shared<Loading>(Loading{
        .planning = {}, .retries = LoadRetries(/*assigned=*/false, {}), .request = request});
    // Stages of the previous coordinator.
    loading->planning.scope.reuse = PlanningOptions::Reuse::kAround;
    loading->planning.skip_measurement_wait = is_recovery;
    loading->then = [this, request, is_recovery, comes_back,
                     end](const absl::StatusOr<DeploymentPtr>& loaded) {
      if (!loaded.ok()) {
        if (comes_back && IsCapacityError(loaded.status())) {
          reloads_.OnTried(request.model_id(), loaded.status());
        }
        return end(loaded.status());
      }
      if (!is_recovery && !request.hold()) reloads_.Remove(request.model_id());
      cluster().Note("the model is loaded");
      const uint64_t lease = models_.OnLoaded(*loaded, request.hold());
      if (!is_recovery && StaysLoaded(request) && !models_.pins().empty()) {
        decisions_.Keep(models_.pins().begin()->second);
      }
      end(lease);
    };
    AfterUnloads([this, loading] { PlanAndDeploy(loading); });
  });
}

void SimCoordinator::PlanAndDeploy(const LoadingPtr& loading) {
  CollectReport([this, loading](SimReport report) {
    SimPlanning planning = PlanningFor(loading->request, std::move(report));
    planning.scope = loading->planning.scope;
    planning.skip_measurement_wait = loading->planning.skip_measurement_wait;
    planning.limits = loading->retries.limits();
    auto planned = PlanSimModel(options_.cluster, planning);
    if (!planned.ok()) return GiveUp(loading, planned.status());
    loading->plan = *std::move(planned);
    Deploy(loading);
  });
}

void SimCoordinator::GiveUp(const LoadingPtr& loading, const absl::Status& why) {
  const DeploymentPtr& instead_of = loading->instead_of;
  if (instead_of == nullptr) return loading->then(why);
  if (!models_.Remove(instead_of)) return loading->then(nullptr);
  reclaimer_.OnDeploymentEnded(Now());
  instead_of->Unload(why);
  loading->then(why);
}

void SimCoordinator::Deploy(const LoadingPtr& loading) {
  UnloadStaleStages(*loading->plan, [this, loading] {
    auto options = OptionsFor(loading->request);
    if (!options.ok()) return GiveUp(loading, options.status());
    if (stopping_) return GiveUp(loading, absl::UnavailableError("the node is stopping"));
    options->requests_wait = loading->planning.skip_measurement_wait;
    const auto deployment =
        std::make_shared<Deployment>(*std::move(options), std::move(loading->plan));
    cluster().Note(absl::StrCat("node ", options_.node, " loads the model, epoch ",
                                deployment->epoch().counter()));
    if (loading->instead_of == nullptr) {
      models_.Put(deployment);
    } else if (!models_.Replace(loading->instead_of, deployment)) {
      return loading->then(nullptr);
    }
    Carry(deployment, /*stays=*/loading->planning.skip_measurement_wait,
          [this, loading, deployment](const absl::Status& status) {
            OnDeployed(loading, deployment, status);
          });
  });
}

void SimCoordinator::OnDeployed(const LoadingPtr& loading, const DeploymentPtr& deployment,
                                const absl::Status& status) {
  if (status.ok()) return loading->then(deployment);
  cluster().Note(absl::StrCat("it was not loaded: ", status.message()));
  const std::optional<CapacityLimit> limit = CapacityLimitOf(deployment->planned(), status);
  bool was_there = models_.Has(deployment);
  if (loading->instead_of != nullptr) {
    deployment->UnloadForNextPlan(status);
    if (!was_there) return loading->then(nullptr);
    loading->instead_of = deployment;
  } else {
    models_.Remove(deployment);
    if (was_there) reclaimer_.OnDeploymentEnded(Now());
    if (was_there && loading->planning.skip_measurement_wait) {
      deployment->AnnounceLeaderChange(status);
    } else {
      deployment->Unload(status);
    }
  }
  if (!loading->retries.OnFailed(limit, was_there && absl::IsUnavailable(status))) {
    return GiveUp(loading, status);
  }
  AfterUnloads([this, loading] { PlanAndDeploy(loading); });
}

void SimCoordinator::Recover(const DeploymentPtr& lost, std::function<void()> then) {
  StartWork([this, lost, then = std::move(then)] {
    const auto end = [this, then] {
      EndWork();
      then();
    };
    if (stopping_ || !models_.Has(lost)) return end();
    const bool was_recovering = lost->recovering();
    const bool lost_a_node = absl::IsUnavailable(lost->why());
    RecoverNow(lost, [this, lost, was_recovering, lost_a_node, end](const absl::Status& status) {
      const bool gave_up = !status.ok() && !stopping_ && models_.Has(lost) && is_leader();
      if (gave_up && !WaitsForReturn(*lost, was_recovering, lost_a_node, status)) {
        cluster().Note(absl::StrCat("it cannot be recovered: ", status.message()));
        lost->Fail(status);
      }
      end();
    });
  });
}

void SimCoordinator::RecoverNow(const DeploymentPtr& lost, const Then& then) {
  const RecoveryDecision decision = DecideRecovery(*lost);
  if (!decision.give_up.ok()) return then(decision.give_up);
  if (lost->BeginRecovery()) ++recoveries_;
  cluster().Note(absl::StrCat("node ", options_.node, " recovers epoch ", lost->epoch().counter()));
  lost->DisownStages();
  AfterUnloads([this, lost, decision, then] {
    CollectReport([this, lost, decision, then](SimReport report) {
      PlaceAgain(lost, decision, std::move(report), then);
    });
  });
}

void SimCoordinator::PlaceAgain(const DeploymentPtr& lost, const RecoveryDecision& decision,
                                SimReport report, const Then& then) {
  SimPlanning planning = PlanningFor(lost->request(), std::move(report));
  planning.source = lost->planned().source;
  planning.scope.reuse = KeptAfter(decision.in_a_row, lost->planned(), lost->why(),
                                   [&] { return AllServe(*lost, planning.report, cluster()); });
  planning.limits = decision.limits;
  auto planned = PlanSimModel(options_.cluster, planning);
  if (!planned.ok()) return then(planned.status());
  const auto held = std::make_shared<PlannedPtr>(*std::move(planned));  // while it is unloaded
  UnloadStaleStages(
      **held, [this, held, lost, decision, then] { TakeOver(held.get(), lost, decision, then); });
}

void SimCoordinator::TakeOver(PlannedPtr* planned, const DeploymentPtr& lost,
                              const RecoveryDecision& decision, const Then& then) {
  auto options = OptionsFor(lost->request());
  if (!options.ok()) return then(options.status());
  options->inherited = lost->engine();
  options->recoveries_in_a_row = decision.next_in_a_row;
  options->limits = decision.limits;
  const auto next = std::make_shared<Deployment>(*std::move(options), std::move(*planned));
  if (stopping_ || !models_.Replace(lost, next)) return then(absl::OkStatus());
  next->TakeRequests(lost->TransferRequests());
  reclaimer_.OnDeploymentEnded(Now());
  cluster().Note(absl::StrCat("placed again, epoch ", next->epoch().counter()));
  Carry(next, /*stays=*/true, [this, then](const absl::Status& status) {
    cluster().Note(absl::StrCat("loaded again: ", status.message()));
    if (status.ok()) rebalance_.OnChange(Now());
    then(absl::OkStatus());  // if it failed, the next deployment is to be recovered now
  });
}

}  // namespace strata
