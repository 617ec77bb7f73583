// Recovery of lost stages: a worker or a node has died, or a link broke. The model's layers are
// placed again on the nodes that are left, and its requests, which wait meanwhile, are fed again
// there and go on. Models of a coordinator that has gone are loaded again; their requests wait at
// the gateways.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/generation/pipeline.h"
#include "coordinator/models/coordinator.h"
#include "coordinator/models/reusable_stages.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

constexpr int64_t kStageQueryMs = 300;  // for a node to report its stage
// The cause by the nodes' own reports: the message of a stage that failed, else `broken`.
absl::Status WhyLost(const Deployment& lost, const absl::Status& broken) {
  const PlannedModel& planned = lost.planned();
  for (size_t i = 0; i < planned.plan.stages.size(); ++i) {
    const NodeReport& node = planned.NodeOf(planned.plan.stages[i]);
    const auto info = node.client->GetInfo(kStageQueryMs);
    if (!info.ok()) return info.status();
    if (auto failure = FailureOf(*info, lost.epoch(), i); !failure.ok()) return failure;
  }
  return broken;
}

bool AllServe(const Deployment& lost) {
  const PlannedModel& planned = lost.planned();
  for (size_t i = 0; i < planned.plan.stages.size(); ++i) {
    const auto info = planned.NodeOf(planned.plan.stages[i]).client->GetInfo(kStageQueryMs);
    if (!info.ok()) return false;
    if (!Serves({info->stages().begin(), info->stages().end()}, lost.epoch(), i)) return false;
  }
  return true;
}

}  // namespace

// The plan counts on their memory.
void Coordinator::UnloadStaleStages(PlannedModel* planned) {
  std::vector<std::thread> threads;
  for (const PlannedModel::StaleStage& stale : planned->stale_stages) {
    NodeClient* const node = planned->report.nodes[stale.node].client.get();
    threads.emplace_back([this, node, &stale] {
      wire::UnloadStageRequest request;
      *request.mutable_epoch() = stale.stage.epoch();
      request.set_stage(stale.stage.stage());
      node->UnloadStage(request, [this, node] { return !stopping() && !IsGone(node->id()); })
          .IgnoreError();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void Coordinator::RunRecoveryLoop() {
  while (true) {
    RecoverySchedule::Round round;
    std::map<std::string, wire::LoadModelRequest> reloads;
    bool rebalances = false, replicates = false;
    {
      absl::MutexLock lock(mu_);
      const SteadyTime rebalance_at = rebalance_.at(), replicate_at = replicate_at_;
      const auto due = [this, rebalance_at, replicate_at]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return stopping_ || recovery_.is_due() || rebalance_.at() != rebalance_at ||
               replicate_at_ != replicate_at;
      };
      mu_.AwaitWithTimeout(
          absl::Condition(&due),
          std::min({rebalance_at, replicate_at, recovery_.next_at()}) - SteadyTime::Now());
      if (stopping_) return;
      rebalances = SteadyTime::Now() >= rebalance_.at();
      replicates = SteadyTime::Now() >= replicate_at_;
      round = recovery_.Begin(models_, reloads_, role_.may_act(), SteadyTime::Now());
      for (const std::string& id : round.reload) {
        reloads[id] = reloads_.entries().at(id).request;
      }
    }
    for (const DeploymentPtr& model : round.recover) Recover(model);
    bool deferred = false;  // models that serve come first
    for (const auto& [id, request] : reloads) {
      deferred = AnyRecovering() || !ReloadOne(id, request) || deferred;
    }
    if (rebalances) Rebalance();
    if (replicates) Replicate();
    absl::MutexLock lock(mu_);
    recovery_.End(models_, reloads_, role_.is_leader(), deferred, SteadyTime::Now());
  }
}

bool Coordinator::AnyRecovering() {
  absl::MutexLock lock(mu_);
  return models_.AnyRecovering();
}

// Loads it as it was requested; its requests come again through their gateways. A reload that fails
// is tried again when the members change, or later.
bool Coordinator::ReloadOne(const std::string& id, const wire::LoadModelRequest& request) {
  OperationContext caller;
  caller.is_recovery = true;
  caller.should_continue = [this, &id] {
    {
      absl::MutexLock lock(mu_);
      if (!reloads_.entries().contains(id)) return false;
    }
    return leadership().mine;
  };
  caller.note = [](const std::string& note) {
    LOG(INFO) << note;
    return true;
  };
  const absl::StatusOr<LoadResult> loaded = Reload(request, caller);
  const bool yielded = !loaded.ok() && caller.should_continue() && AnyRecovering();
  {
    absl::MutexLock lock(mu_);
    if (reloads_.entries().contains(id)) {
      if (!yielded) reloads_.OnTried(id, loaded.status());
      return !yielded;
    }
  }
  // It was unloaded meanwhile, or this node does not coordinate any more.
  if (loaded.ok() && !loaded->was_there) {
    Remove(loaded->deployment, absl::UnavailableError("the model was unloaded"));
  }
  return true;
}

absl::StatusOr<Coordinator::LoadResult> Coordinator::Reload(const wire::LoadModelRequest& request,
                                                            OperationContext caller) {
  const SteadyTime begin = SteadyTime::Now();
  caller.skip_measurement_wait = true;
  auto loaded = Load(request, caller);
  if (!loaded.ok() && caller.should_continue() && !request.placement().assign().empty()) {
    caller.ignore_assignment = true;  // it may name a node that has gone
    loaded = Load(request, caller);
  }
  if (loaded.ok()) {
    LOG(WARNING) << loaded->deployment->name() << ", which was lost, is served again: loaded in "
                 << absl::ToInt64Milliseconds(SteadyTime::Now() - begin) << " ms ("
                 << KeptText(loaded->deployment->stages()) << ")";
  } else if (!absl::IsCancelled(loaded.status())) {
    LOG(WARNING) << request.source().path()
                 << ", which was lost, cannot be loaded again: " << loaded.status().message();
  }
  return loaded;
}

bool Coordinator::IsThere(const DeploymentPtr& deployment) {
  absl::MutexLock lock(mu_);
  return models_.Has(deployment);
}

void Coordinator::Recover(const DeploymentPtr& lost) {
  OperationContext caller;
  caller.skip_measurement_wait = true;
  caller.should_continue = [this, &lost] { return !stopping() && IsThere(lost); };
  caller.note = [&lost](const std::string& note) {
    LOG(INFO) << lost->name() << ": " << note;
    return true;
  };
  const auto work = StartWork(caller);
  if (!work.ok() || !caller.should_continue()) return;
  const bool was_recovering = lost->recovering();
  const bool lost_a_node = absl::IsUnavailable(lost->why());
  const absl::Status status = RecoverNow(lost, caller);
  if (status.ok() || !caller.should_continue()) return;
  // Another node coordinates now: RunLeadershipLoop() transfers the requests to it.
  if (!leadership().mine) return;
  absl::Status why = status;
  {
    absl::MutexLock lock(mu_);
    // That other nodes cannot be reached explains more than that this node alone has no room.
    if (absl::Status cut_off = Misses(); !cut_off.ok()) why = std::move(cut_off);
  }
  if (WaitsForReturn(*lost, was_recovering, lost_a_node, why)) return;
  LOG(WARNING) << lost->name() << " cannot be served now: " << why.message();
  lost->Fail(why);
}

absl::Status Coordinator::RecoverNow(const DeploymentPtr& lost, const OperationContext& caller) {
  const SteadyTime begin = SteadyTime::Now();
  absl::Status why = lost->why();
  const RecoveryDecision decision = DecideRecovery(*lost);
  ExcludeDevice(*lost, why);
  if (!decision.give_up.ok()) return decision.give_up;
  if (lost->BeginRecovery()) {
    LOG(WARNING) << lost->name() << " lost a stage (" << WhyLost(*lost, why).message()
                 << "); its layers are placed again";
  }
  lost->DisownStages();
  const PlannedModel& before = lost->planned();
  const auto kept = KeptAfter(decision.in_a_row, before, why, [&lost] { return AllServe(*lost); });
  PlanningOptions planning = PlanningAgain(*lost, {.reuse = kept}, caller);
  planning.limits.insert(planning.limits.begin(), decision.limits.begin(), decision.limits.end());
  wire::PlacementOptions placement = lost->request().placement();
  placement.set_n_ctx(before.inputs.request.cache.n_ctx);
  auto planned = PlanModel(planning, before.source, placement);
  if (!planned.ok() && !placement.assign().empty()) {
    placement.clear_assign();  // it may name a node that has gone
    planned = PlanModel(planning, before.source, placement);
  }
  if (!planned.ok() && decision.is_of_wrong_numbers) {
    return absl::Status(planned.status().code(),
                        absl::StrCat(why.message(), "; then: ", planned.status().message()));
  }
  if (!planned.ok()) return planned.status();
  auto options = OptionsFor(lost->request());
  if (!options.ok()) return options.status();
  UnloadStaleStages(planned->get());
  options->inherited = lost->engine();
  options->recoveries_in_a_row = decision.next_in_a_row;
  options->limits = planning.limits;
  const auto next = std::make_shared<Deployment>(*std::move(options), *std::move(planned));
  {
    absl::MutexLock lock(mu_);
    // If it is not replaced, the caller that removed the lost deployment ends the requests.
    if (stopping_ || !models_.Replace(lost, next)) return absl::OkStatus();
    next->TakeRequests(lost->TransferRequests());
    reclaimer_.OnDeploymentEnded(SteadyTime::Now());
  }
  const SteadyTime placed = SteadyTime::Now();
  const absl::Status loaded =
      next->Load([this](uint32_t, const wire::LoadProgress&) { return !stopping(); });
  if (!loaded.ok()) {
    LOG(WARNING) << next->name() << ": " << loaded.message();
    return absl::OkStatus();  // the next deployment is to be recovered now
  }
  {
    absl::MutexLock lock(mu_);
    rebalance_.OnChange(SteadyTime::Now());
  }
  ReplicateSoon();
  LOG(WARNING) << next->name() << " is served again: placed in "
               << absl::ToInt64Milliseconds(placed - begin) << " ms, loaded in "
               << absl::ToInt64Milliseconds(SteadyTime::Now() - placed) << " ms ("
               << KeptText(next->stages()) << "); requests that go on: " << next->active_requests();
  return absl::OkStatus();
}

}  // namespace strata
