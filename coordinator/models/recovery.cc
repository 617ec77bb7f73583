// Lost stages: a worker or a node has died, or a link broke. The model's layers are placed again on
// what is left, and its texts, which wait meanwhile, are fed again there and go on. Models of a
// coordinator that has gone are loaded again; their texts wait at their gateways.
#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/generation/pipeline.h"
#include "coordinator/models/coordinator.h"
#include "coordinator/models/reusable_stages.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

constexpr int64_t kLookMs = 300;  // for a node to say what it knows of its stage
// A model that is lost again within that long may be what breaks its workers.
constexpr absl::Duration kHealthyTime = absl::Seconds(30);
constexpr uint32_t kRecoveriesInARowMax = 5;
// Between the second try of a row and the one before; doubles with each further one.
constexpr absl::Duration kPause = absl::Milliseconds(250);
// So long nodes may be out of reach before texts are told.
constexpr absl::Duration kPatience = absl::Seconds(10);
// What found no room is tried again when the members change, and then, since room may also come
// from elsewhere; the time doubles with each further one.
constexpr absl::Duration kRetryAfter = absl::Seconds(10), kRetryAfterMax = absl::Minutes(1);

// What the nodes know of it: the words of a stage that failed, else `broken`.
absl::Status WhyLost(const Deployment& lost, const absl::Status& broken) {
  const PlannedModel& planned = lost.planned();
  for (size_t i = 0; i < planned.plan.stages.size(); ++i) {
    const NodeReport& node = planned.NodeOf(planned.plan.stages[i]);
    const auto info = node.client->GetInfo(kLookMs);
    if (!info.ok()) return info.status();
    if (auto failure = FailureOf(*info, lost.epoch(), i); !failure.ok()) return failure;
  }
  return broken;
}

bool AllServe(const Deployment& lost) {
  const PlannedModel& planned = lost.planned();
  for (size_t i = 0; i < planned.plan.stages.size(); ++i) {
    const auto info = planned.NodeOf(planned.plan.stages[i]).client->GetInfo(kLookMs);
    if (!info.ok()) return false;
    if (!Serves({info->stages().begin(), info->stages().end()}, lost.epoch(), i)) return false;
  }
  return true;
}

// It has served for long since it was recovered, if it ever was.
bool WasHealthy(const Deployment& lost) {
  return lost.served_for() >= kHealthyTime || !lost.recovering();
}

// How long it is left alone yet. There is nothing to wait for where it is known what the plan
// lacked.
absl::Duration PauseOf(const Deployment& lost) {
  if (lost.recoveries_in_a_row() == 0 || WasHealthy(lost)) return absl::ZeroDuration();
  const std::optional<CapacityLimit> lacks = CapacityLimitOf(lost.planned(), lost.why());
  if (lacks && lacks->of_disk()) return absl::ZeroDuration();
  return (1 << lost.recoveries_in_a_row()) * kPause - lost.lost_for();
}

}  // namespace

// What is planned counts on their memory.
void Coordinator::UnloadStaleStages(PlannedModel* planned) {
  std::vector<std::thread> threads;
  for (const PlannedModel::StaleStage& leftover : planned->leftovers) {
    NodeClient* const node = planned->report.nodes[leftover.node].client.get();
    threads.emplace_back([this, node, &leftover] {
      wire::UnloadStageRequest request;
      *request.mutable_epoch() = leftover.stage.epoch();
      request.set_stage(leftover.stage.stage());
      node->UnloadStage(request, [this, node] { return !stopping() && !IsGone(node->id()); })
          .IgnoreError();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void Coordinator::RunRecoveryLoop() {
  SteadyTime retry_at = SteadyTime::InfiniteFuture();
  absl::Duration retry_after = kRetryAfter;
  bool deferred = false;  // pending reloads that are due: what serves comes first
  SteadyTime paused_until = SteadyTime::InfiniteFuture();
  while (true) {
    std::vector<DeploymentPtr> lost;
    std::map<std::string, PendingReload> pending_reloads;
    bool look = false, again = false;
    {
      absl::MutexLock lock(mu_);
      const SteadyTime look_at = look_at_;
      const auto due = [this, look_at]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return stopping_ || recovery_due_ || retry_due_ || reload_due_ || look_at_ != look_at;
      };
      const SteadyTime defers_until =
          deferred ? SteadyTime::Now() + kPoll : SteadyTime::InfiniteFuture();
      mu_.AwaitWithTimeout(
          absl::Condition(&due),
          std::min({look_at, retry_at, defers_until, paused_until}) - SteadyTime::Now());
      if (stopping_) return;
      paused_until = SteadyTime::InfiniteFuture();
      look = SteadyTime::Now() >= look_at_;
      again = SteadyTime::Now() >= retry_at;
      const bool all = retry_due_ || reload_due_ || deferred;
      for (const auto& [id, pending_reload] : pending_reloads_) {
        if (all || (again && IsCapacityError(pending_reload.why)))
          pending_reloads[id] = pending_reload;
      }
      for (const auto& [id, model] : models_) {
        if (!is_leader_ || !settled_) continue;
        const bool retry = retry_due_ || (again && IsCapacityError(model->why()));
        if (!model->recovering() && !(retry && model->lost_a_stage())) continue;
        const absl::Duration pause = PauseOf(*model);
        if (pause <= absl::ZeroDuration()) {
          lost.push_back(model);
        } else {
          paused_until = std::min(paused_until, SteadyTime::Now() + pause);
        }
      }
      if (retry_due_) {
        retry_at = SteadyTime::InfiniteFuture();
        retry_after = kRetryAfter;
      }
      recovery_due_ = retry_due_ = reload_due_ = false;
    }
    for (const DeploymentPtr& model : lost) Recover(model);
    deferred = false;
    for (const auto& [id, pending_reload] : pending_reloads) {
      deferred = AnyRecovering() || !Reload(id, pending_reload.request) || deferred;
    }
    if (look) Rebalance();
    if (again) retry_at = SteadyTime::InfiniteFuture();
    const Lost still = WhatIsLost();
    if (!still.any) {
      retry_at = SteadyTime::InfiniteFuture();
      retry_after = kRetryAfter;
    }
    if (still.wants_room && retry_at == SteadyTime::InfiniteFuture()) {
      retry_at = SteadyTime::Now() + retry_after;
      retry_after = std::min(2 * retry_after, kRetryAfterMax);
    }
  }
}

Coordinator::Lost Coordinator::WhatIsLost() {
  absl::MutexLock lock(mu_);
  Lost lost;
  if (!is_leader_) return lost;
  lost.any = !pending_reloads_.empty();
  lost.wants_room = absl::c_any_of(
      pending_reloads_, [](const auto& each) { return IsCapacityError(each.second.why); });
  for (const auto& [id, model] : models_) {
    if (!model->lost_a_stage()) continue;
    lost.any = true;
    lost.wants_room = lost.wants_room || (!model->recovering() && IsCapacityError(model->why()));
  }
  return lost;
}

bool Coordinator::AnyRecovering() {
  absl::MutexLock lock(mu_);
  return absl::c_any_of(models_, [](const auto& model) { return model.second->recovering(); });
}

// Again as it was asked for; its texts come again through their gateways. What fails is tried again
// when the members change, or later.
bool Coordinator::Reload(const std::string& id, const wire::LoadModelRequest& pending_reload) {
  OperationContext caller;
  caller.is_recovery = true;
  caller.should_continue = [this, &id] { return IsPendingReload(id) && leadership().mine; };
  caller.note = [](const std::string& note) {
    LOG(INFO) << note;
    return true;
  };
  const absl::StatusOr<Loaded> loaded = LoadAgain(pending_reload, caller);
  const bool gave_way = !loaded.ok() && caller.should_continue() && AnyRecovering();
  {
    absl::MutexLock lock(mu_);
    const auto found = pending_reloads_.find(id);
    if (found != pending_reloads_.end()) {
      if (!gave_way) found->second.why = loaded.status();
      if (loaded.ok()) pending_reloads_.erase(found);
      return !gave_way;
    }
  }
  // Somebody unloaded it meanwhile, or this node coordinates no more.
  if (loaded.ok() && !loaded->was_there) {
    Remove(loaded->deployment, absl::UnavailableError("the model was unloaded"));
  }
  return true;
}

bool Coordinator::IsPendingReload(const std::string& id) {
  absl::MutexLock lock(mu_);
  return pending_reloads_.contains(id);
}

absl::StatusOr<Coordinator::Loaded> Coordinator::LoadAgain(const wire::LoadModelRequest& request,
                                                           OperationContext caller) {
  const SteadyTime begin = SteadyTime::Now();
  caller.skip_measurement_wait = true;
  auto loaded = Load(request, caller);
  if (!loaded.ok() && caller.should_continue() && !request.placement().assign().empty()) {
    caller.ignore_assignment = true;  // it may name who has gone
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
  const auto entry = models_.find(deployment->model_id());
  return entry != models_.end() && entry->second == deployment;
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
  // Another node coordinates now, and the texts are handed over to it (Keep).
  if (!leadership().mine) return;
  absl::Status why = status;
  {
    absl::MutexLock lock(mu_);
    // That the others are not reached says more than that this node alone has no room.
    if (absl::Status cut_off = Misses(); !cut_off.ok()) why = std::move(cut_off);
  }
  // A node that does not answer now may have gone in a moment, or be back, and its memory with it.
  const bool may_return =
      absl::IsUnavailable(why) || (absl::IsResourceExhausted(why) && lost_a_node);
  if (may_return && was_recovering && lost->lost_for() < kPatience) return;
  LOG(WARNING) << lost->name() << " cannot be served now: " << why.message();
  lost->Fail(why);
}

absl::Status Coordinator::RecoverNow(const DeploymentPtr& lost, const OperationContext& caller) {
  const SteadyTime begin = SteadyTime::Now();
  absl::Status why = lost->why();
  const bool healthy = WasHealthy(*lost);
  const uint32_t in_a_row = healthy ? 0 : lost->recoveries_in_a_row();
  const std::optional<CapacityLimit> cap = CapacityLimitOf(lost->planned(), why);
  Refuse(*lost, why);
  const bool lacks_disk = cap && cap->of_disk();  // which breaks nothing
  if (lacks_disk && lost->caps().size() >= kCapacityLimitsMax) return why;
  if (in_a_row >= kRecoveriesInARowMax && !lacks_disk) {
    return absl::AbortedError(absl::StrCat("its stages were lost ", in_a_row + 1,
                                           " times, one after the other: ", why.message()));
  }
  if (lost->BeginRecovery()) {
    LOG(WARNING) << lost->name() << " lost a stage (" << WhyLost(*lost, why).message()
                 << "); its layers are placed again";
  }
  lost->DisownStages();
  const PlannedModel& before = lost->planned();
  PlanningOptions planning = PlanningFor(caller);
  planning.known = before.model;
  planning.model_id = before.model->id();
  planning.loaded = KeptAfter(in_a_row, before, why, [&lost] { return AllServe(*lost); });
  if (!healthy) planning.caps = lost->caps();
  if (cap) planning.caps.push_back(*cap);
  absl::c_copy(Refused(planning.model_id), std::back_inserter(planning.caps));
  wire::PlacementOptions placement = lost->request().placement();
  placement.set_n_ctx(before.inputs.request.cache.n_ctx);
  auto planned = PlanModel(planning, before.source, placement);
  if (!planned.ok() && !placement.assign().empty()) {
    placement.clear_assign();  // it may name who has gone
    planned = PlanModel(planning, before.source, placement);
  }
  if (!planned.ok() && cap && cap->wrong_numbers) {
    return absl::Status(planned.status().code(),
                        absl::StrCat(why.message(), "; then: ", planned.status().message()));
  }
  if (!planned.ok()) return planned.status();
  auto options = OptionsFor(lost->request());
  if (!options.ok()) return options.status();
  UnloadStaleStages(planned->get());
  options->inherited = lost->engine();
  options->recoveries_in_a_row = in_a_row + (lacks_disk ? 0 : 1);
  options->caps = planning.caps;
  const auto next = std::make_shared<Deployment>(*std::move(options), *std::move(planned));
  {
    absl::MutexLock lock(mu_);
    const auto entry = models_.find(lost->model_id());
    // Then whoever took the lost one away ends the texts.
    if (stopping_ || entry == models_.end() || entry->second != lost) return absl::OkStatus();
    next->TakeRequests(lost->TransferRequests());
    entry->second = next;
    ++ended_;
  }
  const SteadyTime placed = SteadyTime::Now();
  const absl::Status loaded =
      next->Load([this](uint32_t, const wire::LoadProgress&) { return !stopping(); });
  if (!loaded.ok()) {
    LOG(WARNING) << next->name() << ": " << loaded.message();
    return absl::OkStatus();  // it is the one to recover now
  }
  {
    absl::MutexLock lock(mu_);
    ScheduleRebalance();
  }
  LOG(WARNING) << next->name() << " is served again: placed in "
               << absl::ToInt64Milliseconds(placed - begin) << " ms, loaded in "
               << absl::ToInt64Milliseconds(SteadyTime::Now() - placed) << " ms ("
               << KeptText(next->stages()) << "); texts that go on: " << next->texts();
  return absl::OkStatus();
}

}  // namespace strata
