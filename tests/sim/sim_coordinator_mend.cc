// What coordinator/models/coordinator.cc, model_loader.cc and recovery.cc do: loads,
// and what is done about lost stages.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/models/reusable_stages.h"
#include "tests/sim/sim_coordinator.h"
#include "transport/base/epoch.h"

namespace strata {
namespace {

// As in coordinator/models/recovery.cc and model_loader.cc.
constexpr int64_t kHealthyUs = 30'000'000;
constexpr uint32_t kRecoveriesInARowMax = 5;
constexpr int64_t kPauseUs = 250'000;
constexpr int64_t kPatienceUs = 10'000'000;
constexpr int64_t kRetryAfterUs = 10'000'000, kRetryAfterUsMax = 60'000'000;
constexpr int kPlansMax = 4;

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
  options.texts = options_.texts;
  if (options_.forgets_bounds) options.texts.policy.queue_max *= 8;
  options.broken = [this] {
    recovery_due_ = true;
    After(0, [this] { RunRecoveryLoop(); });
  };
  options.build = [this](const PipelineOptions& build, Pipeline::Listener* listener,
                         const Pipeline::Progress&) -> absl::StatusOr<std::unique_ptr<Pipeline>> {
    built_ = true;
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
  planning.kept_out = flap_tracker_.KeptOut(Now());
  planning.n_seqs = request.placement().n_seqs();
  return planning;
}

void SimCoordinator::UnloadStaleStages(const PlannedModel& planned, std::function<void()> then) {
  std::vector<SimStaleStage> leftovers;
  for (const PlannedModel::StaleStage& left : planned.leftovers) {
    const auto node = NodeId::FromHex(planned.report.nodes[left.node].info.node_id());
    leftovers.push_back({.node = cluster().NumberOf(*node),
                         .key = StageKeyOf(left.stage.epoch(), left.stage.stage())});
  }
  UnloadSimStaleStages(
      options_.cluster, options_.node, leftovers, [this](size_t node) { return IsGone(node); },
      std::move(then));
}

void SimCoordinator::Carry(const DeploymentPtr& deployment, bool stays, const Then& then) {
  const PlannedModel& planned = deployment->planned();
  SimStages stages;
  // What Deployment::Build() and Pipeline::SpecOf() make of a plan.
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
  LoadSimStages(
      options_.cluster, options_.node, stages, [this](size_t node) { return IsGone(node); },
      [this, deployment, stages, then](absl::StatusOr<SimLoadPtr> load) {
        loaded_ = load;
        built_ = false;
        absl::Status status =
            deployment->Load([](uint32_t, const wire::LoadProgress&) { return true; });
        loaded_ = absl::UnknownError("nothing is loaded");
        times_[deployment.get()].since_us = now_us();
        if (built_ || !load.ok()) return then(status);
        // It was unloaded while it was loaded, and has not seen its stages.
        (*load)->first->Close();
        UnloadSimStages(
            options_.cluster, options_.node, stages, [this](size_t node) { return IsGone(node); },
            [then, status] { then(status); });
      });
}

bool SimCoordinator::WantsRoom() const {
  if (!is_leader_) return false;
  return (pending_reload_.has_value() && IsCapacityError(reload_why_)) ||
         (model_ != nullptr && model_->lost_a_stage() && !model_->recovering() &&
          IsCapacityError(model_->why()));
}

// At each tick, too.
void SimCoordinator::RunRecoveryLoop() {
  if (stopping_ || recovering_) return;
  const bool any_lost =
      pending_reload_.has_value() || (model_ != nullptr && model_->lost_a_stage());
  if (retry_due_ || !any_lost) {
    retry_after_us_ = kRetryAfterUs;
    retry_at_us_ = 0;
  }
  if (WantsRoom() && retry_at_us_ == 0) {
    retry_at_us_ = now_us() + retry_after_us_;
    retry_after_us_ = std::min(2 * retry_after_us_, kRetryAfterUsMax);
  }
  const bool again = retry_at_us_ != 0 && now_us() >= retry_at_us_;
  if (!(recovery_due_ || retry_due_ || again)) return;
  const bool retry = std::exchange(retry_due_, false) || again;
  if (again) retry_at_us_ = 0;
  recovery_due_ = false;
  const bool may_recover = is_leader_ && settled_ && model_ != nullptr;
  if (may_recover && (model_->recovering() || (retry && model_->lost_a_stage()))) {
    recovering_ = true;
    Recover(model_);
  } else if (retry && pending_reload_.has_value()) {
    recovering_ = true;
    Reload();
  }
}

void SimCoordinator::EndRecovery() {
  recovering_ = false;
  After(0, [this] { RunRecoveryLoop(); });
}

void SimCoordinator::Reload() {
  LoadNow(*pending_reload_, /*skip_measurement_wait=*/true, [this](const absl::Status& status) {
    reload_untried_ = false;
    reload_why_ = status;
    if (status.ok()) {
      pending_reload_.reset();
      ++adoptions_;
      cluster().Note("the model is adopted");
    }
    EndRecovery();
  });
}

void SimCoordinator::Load(size_t source) {
  wire::LoadModelRequest request;
  request.mutable_source()->set_node(cluster().IdOf(source).ToHex());
  request.mutable_placement()->set_n_seqs(options_.model->cache.n_seqs);
  request.set_model_id(options_.model->file->id());
  LoadNow(request, /*skip_measurement_wait=*/false, [](const absl::Status&) {});
}

void SimCoordinator::LoadNow(const wire::LoadModelRequest& request, bool skip_measurement_wait,
                             const Then& then) {
  RefreshLeadership();
  if (!is_leader()) return then(absl::UnavailableError("this node does not coordinate"));
  StartWork([this, request, skip_measurement_wait, then = [this, then](const absl::Status& status) {
    EndWork();
    then(status);
  }] {
    if (stopping_ || !is_leader()) return then(absl::UnavailableError("not any more"));
    if (model_ != nullptr) {
      if (model_->recovering()) return then(absl::UnavailableError("its layers are placed again"));
      if (model_->serving()) return then(absl::OkStatus());
      // Failed: it makes room for this.
      const DeploymentPtr failed = std::exchange(model_, nullptr);
      failed->Unload(absl::UnavailableError("the model is loaded again"));
    }
    AfterUnloads([this, request, skip_measurement_wait, then] {
      CollectSimReport(options_.cluster, options_.node, Members(),
                       [this, request, skip_measurement_wait, then](SimReport report) {
                         SimPlanning planning = PlanningFor(request, std::move(report));
                         // Of the coordinator before.
                         planning.loaded = PlanningOptions::Loaded::kAround;
                         planning.skip_measurement_wait = skip_measurement_wait;
                         Deploy(std::move(planning), 1, request, then);
                       });
    });
  });
}

void SimCoordinator::Deploy(SimPlanning planning, int plans, const wire::LoadModelRequest& request,
                            const Then& then) {
  auto planned = PlanSimModel(options_.cluster, planning);
  if (!planned.ok()) return then(planned.status());
  const auto held = std::make_shared<PlannedPtr>(*std::move(planned));  // while it is unloaded
  UnloadStaleStages(**held, [this, held, planning = std::move(planning), plans, request, then] {
    DeployNow(held.get(), planning, plans, request, then);
  });
}

void SimCoordinator::DeployNow(PlannedPtr* planned, const SimPlanning& planning, int plans,
                               const wire::LoadModelRequest& request, const Then& then) {
  auto options = OptionsFor(request);
  if (!options.ok()) return then(options.status());
  if (stopping_) return then(absl::UnavailableError("the node is stopping"));
  options->requests_wait = planning.skip_measurement_wait;
  const auto deployment = std::make_shared<Deployment>(*std::move(options), std::move(*planned));
  cluster().Note(absl::StrCat("node ", options_.node, " loads the model, epoch ",
                              deployment->epoch().counter()));
  model_ = deployment;
  Carry(deployment, /*stays=*/planning.skip_measurement_wait,
        [this, deployment, planning, plans, request, then](const absl::Status& status) {
          if (status.ok()) {
            cluster().Note("the model is loaded");
            return then(status);
          }
          cluster().Note(absl::StrCat("it was not loaded: ", status.ToString()));
          const std::optional<CapacityLimit> cap = CapacityLimitOf(deployment->planned(), status);
          const bool was_there = model_ == deployment;
          if (was_there) model_ = nullptr;
          if (was_there && planning.skip_measurement_wait) {
            deployment->AnnounceLeaderChange(status);
          } else {
            deployment->Unload(status);
          }
          const bool enough = plans == kPlansMax || planning.caps.size() == kCapacityLimitsMax;
          if (!cap.has_value() || enough) return then(status);
          SimPlanning again = planning;
          again.caps.push_back(*cap);
          const int plans_then = plans + (cap->of_disk() ? 0 : 1);
          CollectSimReport(options_.cluster, options_.node, Members(),
                           [this, again, plans_then, request, then](SimReport report) {
                             SimPlanning now = again;
                             now.report = std::move(report);
                             Deploy(std::move(now), plans_then, request, then);
                           });
        });
}

void SimCoordinator::Recover(const DeploymentPtr& lost) {
  const auto begin = [this, lost] {
    if (stopping_ || model_ != lost) return EndRecovery();
    StartWork([this, lost] {
      const auto end = [this] {
        EndWork();
        EndRecovery();
      };
      if (stopping_ || model_ != lost) return end();
      const bool was_recovering = lost->recovering();
      const bool lost_a_node = absl::IsUnavailable(lost->why());
      RecoverNow(lost, [this, lost, was_recovering, lost_a_node, end](const absl::Status& status) {
        const bool gave_up = !status.ok() && !stopping_ && model_ == lost && is_leader();
        const int64_t lost_for_us = now_us() - times_[lost.get()].since_us;
        const bool may_return =
            absl::IsUnavailable(status) || (absl::IsResourceExhausted(status) && lost_a_node);
        const bool patient = may_return && was_recovering && lost_for_us < kPatienceUs;
        if (gave_up && !patient) {
          cluster().Note(absl::StrCat("it cannot be recovered: ", status.ToString()));
          lost->Fail(status);
        }
        end();
      });
    });
  };
  const std::optional<CapacityLimit> lacks = CapacityLimitOf(lost->planned(), lost->why());
  const bool is_known = lacks && lacks->of_disk();
  const bool waits = lost->recovering() && lost->recoveries_in_a_row() > 0 && !is_known;
  After(waits ? (int64_t{1} << lost->recoveries_in_a_row()) * kPauseUs : 0, begin);
}

void SimCoordinator::RecoverNow(const DeploymentPtr& lost, const Then& then) {
  Times& times = times_[lost.get()];
  if (lost->BeginRecovery()) {
    ++recoveries_;
    times = {.since_us = now_us(), .served_for_us = now_us() - times.since_us};
  }
  const absl::Status why = lost->why();
  const bool healthy = times.served_for_us >= kHealthyUs || !lost->recovering();
  const uint32_t in_a_row = healthy ? 0 : lost->recoveries_in_a_row();
  const std::optional<CapacityLimit> cap = CapacityLimitOf(lost->planned(), why);
  const bool lacks_disk = cap && cap->of_disk();
  if (lacks_disk && lost->caps().size() >= kCapacityLimitsMax) return then(why);
  if (in_a_row >= kRecoveriesInARowMax && !lacks_disk) {
    return then(absl::AbortedError("lost too often"));
  }
  cluster().Note(absl::StrCat("node ", options_.node, " recovers epoch ", lost->epoch().counter()));
  lost->DisownStages();
  AfterUnloads([this, lost, in_a_row, healthy, why, then] {
    CollectSimReport(options_.cluster, options_.node, Members(),
                     [this, lost, in_a_row, healthy, why, then](SimReport report) {
                       PlaceAgain(lost, in_a_row, healthy, why, std::move(report), then);
                     });
  });
}

void SimCoordinator::PlaceAgain(const DeploymentPtr& lost, uint32_t in_a_row, bool healthy,
                                const absl::Status& why, SimReport report, const Then& then) {
  SimPlanning planning = PlanningFor(lost->request(), std::move(report));
  planning.source = lost->planned().source;
  planning.loaded = KeptAfter(in_a_row, lost->planned(), why,
                              [&] { return AllServe(*lost, planning.report, cluster()); });
  if (!healthy) planning.caps = lost->caps();
  const std::optional<CapacityLimit> cap = CapacityLimitOf(lost->planned(), why);
  if (cap) planning.caps.push_back(*cap);
  auto planned = PlanSimModel(options_.cluster, planning);
  if (!planned.ok()) return then(planned.status());
  const auto held = std::make_shared<PlannedPtr>(*std::move(planned));  // while it is unloaded
  const uint32_t then_in_a_row = in_a_row + (cap && cap->of_disk() ? 0 : 1);
  UnloadStaleStages(**held, [this, held, lost, then_in_a_row, caps = planning.caps, then] {
    TakeOver(held.get(), lost, then_in_a_row, caps, then);
  });
}

void SimCoordinator::TakeOver(PlannedPtr* planned, const DeploymentPtr& lost, uint32_t in_a_row,
                              const std::vector<CapacityLimit>& caps, const Then& then) {
  auto options = OptionsFor(lost->request());
  if (!options.ok()) return then(options.status());
  options->inherited = lost->engine();
  options->recoveries_in_a_row = in_a_row;
  options->caps = caps;
  const auto next = std::make_shared<Deployment>(*std::move(options), std::move(*planned));
  if (stopping_ || model_ != lost) return then(absl::OkStatus());
  next->TakeRequests(lost->TransferRequests());
  model_ = next;
  times_.erase(lost.get());
  cluster().Note(absl::StrCat("placed again, epoch ", next->epoch().counter()));
  Carry(next, /*stays=*/true, [this, then](const absl::Status& status) {
    cluster().Note(absl::StrCat("loaded again: ", status.ToString()));
    then(absl::OkStatus());  // if not, it is the one to recover now
  });
}

}  // namespace strata
