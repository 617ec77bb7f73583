// Carries out a plan, and plans again where there was less memory or disk than it counted on, or
// the connection to a node broke. Unloads models that are idle: when their time is over, and to
// make room.
#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "coordinator/generation/model_drafter.h"
#include "coordinator/models/coordinator.h"
#include "coordinator/models/draft_model.h"
#include "coordinator/models/load_retries.h"
#include "coordinator/request/request_status.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

// Stages that were still loading when another one failed are cancelled, not waited for.
constexpr absl::Duration kMemoryComesBackTime = absl::Seconds(3);
constexpr absl::Duration kMemoryComesBackPoll = absl::Milliseconds(300);
// A load waits so long for models that are about to be idle.
constexpr absl::Duration kIdleSoonTime = absl::Seconds(3);

}  // namespace

void Coordinator::UnloadExpired() {
  while (true) {
    DeploymentPtr expired;
    {
      absl::MutexLock lock(mu_);
      if (stopping_ || !role_.may_act()) return;
      expired = retention_.NextExpired(models_, SteadyTime::Now());
      if (expired == nullptr || !TakeOut(expired)) return;
      StopKeeping(expired->model_id());
    }
    LOG(INFO) << expired->name() << " has had no request for its keep-alive, and is unloaded";
    UnloadCounted(expired.get());
  }
}

bool Coordinator::Evict(const DeploymentPtr& model, bool by_hand) {
  {
    absl::MutexLock lock(mu_);
    const auto evictable = retention_.Evictable(models_, by_hand, SteadyTime::Now());
    if (!absl::c_linear_search(evictable, model) || !TakeOut(model)) return false;
    StopKeeping(model->model_id());
  }
  LOG(INFO) << model->name() << " is unloaded to make room for another model";
  UnloadCounted(model.get());
  return true;
}

std::string Coordinator::WhatToUnload() {
  std::vector<std::string> models;
  absl::MutexLock lock(mu_);
  for (const auto& [id, model] : models_.models()) {
    const auto pin = models_.pins().find(id);
    const bool is_pinned = pin != models_.pins().end() && pin->second.pinned();
    const char* const why = is_pinned                         ? " (pinned)"
                            : retention_.IsInUse(models_, id) ? " (in use)"
                                                              : "";
    models.push_back(absl::StrCat(models_.ShownName(model), why));
  }
  return absl::StrJoin(models, ", ");
}

absl::Status Coordinator::MakeRoom(PlanningOptions planning, const wire::ModelSource& source,
                                   const wire::PlacementOptions& placement, bool by_hand,
                                   const absl::Status& why, const OperationContext& caller) {
  const auto candidates = [&, this] {
    absl::MutexLock lock(mu_);
    return retention_.Evictable(models_, by_hand, SteadyTime::Now());
  };
  const auto may_come = [&, this] {
    absl::MutexLock lock(mu_);
    return ModelRetention::AnyMayBeEvicted(models_, by_hand);
  };
  std::vector<DeploymentPtr> idle = candidates();
  for (const SteadyTime until = SteadyTime::Now() + kIdleSoonTime;
       idle.empty() && may_come() && SteadyTime::Now() < until && caller.should_continue();
       idle = candidates()) {
    Wait(kPoll, [] { return false; });
  }
  // None goes unless that makes room.
  planning.on_headers = nullptr;
  size_t n = 0;
  absl::Status planned = why;
  while (absl::IsResourceExhausted(planned) && n < idle.size()) {
    std::ranges::move(MemoryOf(*idle[n++]), std::back_inserter(planning.freed));
    planned = PlanModel(planning, source, placement).status();
  }
  if (!planned.ok() && !absl::IsResourceExhausted(planned)) return planned;
  bool made_room = false;
  for (size_t i = 0; planned.ok() && i < n && caller.should_continue(); ++i) {
    caller.note(absl::StrCat("Unloading ", idle[i]->name(), " to make room…"));
    made_room = Evict(idle[i], by_hand) || made_room;
  }
  if (made_room) {
    planning.freed.clear();
    for (const SteadyTime until = SteadyTime::Now() + kMemoryComesBackTime;
         SteadyTime::Now() < until && caller.should_continue() &&
         absl::IsResourceExhausted(PlanModel(planning, source, placement).status());) {
      planning.pause(kMemoryComesBackPoll);  // the operating system frees it when it likes
    }
    return absl::OkStatus();
  }
  const std::string others = WhatToUnload();
  if (others.empty()) return why;
  return WithRetryAfterMs(
      absl::ResourceExhaustedError(
          absl::StrCat(why.message(), "; strata unload MODEL makes room; loaded are: ", others)),
      kRetrySoonMs);
}

void Coordinator::ExcludeDevice(const Deployment& deployment, const absl::Status& why) {
  const std::optional<CapacityLimit> limit = CapacityLimitOf(deployment.planned(), why);
  if (!limit || !limit->wrong_numbers) return;
  absl::MutexLock lock(mu_);
  if (excluded_devices_.size() >= kModelsMax &&
      !excluded_devices_.contains(deployment.model_id())) {
    excluded_devices_.erase(excluded_devices_.begin());
  }
  std::vector<CapacityLimit>& limits = excluded_devices_[deployment.model_id()];
  if (limits.size() < kCapacityLimitsMax) limits.push_back(*limit);
}

std::vector<CapacityLimit> Coordinator::ExcludedDevices(const std::string& model_id) {
  absl::MutexLock lock(mu_);
  const auto found = excluded_devices_.find(model_id);
  return found == excluded_devices_.end() ? std::vector<CapacityLimit>() : found->second;
}

absl::StatusOr<Deployment::Options> Coordinator::OptionsFor(const wire::LoadModelRequest& request) {
  auto epoch = NextEpoch();
  if (!epoch.ok()) return epoch.status();
  Deployment::Options options;
  options.epoch = *std::move(epoch);
  options.request = request;
  options.self_node = options_.node_id;
  options.listen_host = options_.listen_host;
  options.gone = [this](const std::string& node) { return IsGone(node); };
  options.self_tests = options_.self_tests;
  options.broken = [this] {
    absl::MutexLock lock(mu_);
    recovery_.OnLost();
  };
  return options;
}

MakeModelDrafter Coordinator::DrafterFor(const std::string& draft,
                                         const std::shared_ptr<const ModelFile>& model) {
  if (draft.empty()) return nullptr;
  // It is called on the loop's thread alone.
  const auto find = [this, draft, model, checked = std::weak_ptr<const ModelFile>()]() mutable {
    std::shared_ptr<GenerationEngine> engine;
    std::shared_ptr<const ModelFile> file;
    {
      absl::MutexLock lock(mu_);
      const auto found = models_.Find(draft);  // not kept: a deployment's end blocks
      if (!found.ok()) return engine;
      engine = (*found)->engine();
      file = (*found)->planned().model;
    }
    if (checked.lock() != file) {
      if (!CheckDraftModel(*model, *file).ok()) return std::shared_ptr<GenerationEngine>();
      checked = file;
    }
    return engine;
  };
  return [loop = loop_, find](std::function<void()> on_drafted) {
    return std::make_unique<ModelDrafter>(ModelDrafter::Options{
        .find = find,
        .post = [loop](absl::AnyInvocable<void() &&> fn) { loop->Post(std::move(fn)); },
        .on_drafted = std::move(on_drafted)});
  };
}

absl::StatusOr<Coordinator::DeploymentPtr> Coordinator::Deploy(
    std::unique_ptr<PlannedModel> planned, const wire::LoadModelRequest& request,
    const DeploymentPtr& instead_of, const OperationContext& caller, LoadFailure* failure) {
  auto options = OptionsFor(request);
  if (!options.ok()) return options.status();
  UnloadStaleStages(planned.get());
  options->requests_wait = caller.skip_measurement_wait;
  options->engine.model_drafter = DrafterFor(request.draft(), planned->model);
  auto deployment = std::make_shared<Deployment>(*std::move(options), std::move(planned));
  {
    absl::MutexLock lock(mu_);
    if (stopping_) return absl::UnavailableError("the node is stopping");
    if (instead_of == nullptr) {
      models_.Put(deployment);
    } else if (!models_.Replace(instead_of, deployment)) {
      return nullptr;
    }
  }
  absl::Status status;
  if (caller.placed && !caller.placed(StatusOf(deployment))) {
    status = absl::CancelledError("interrupted");
  }
  if (status.ok()) {
    status = deployment->Load([&](uint32_t stage, const wire::LoadProgress& progress) {
      return caller.should_continue() && (!caller.progress || caller.progress(stage, progress));
    });
  }
  if (!status.ok()) {
    failure->limit = CapacityLimitOf(deployment->planned(), status);
    ExcludeDevice(*deployment, status);
    if (instead_of != nullptr) {
      deployment->UnloadForNextPlan(status);
      if (!IsThere(deployment)) return nullptr;
      failure->is_unavailable = absl::IsUnavailable(status);
      failure->in_place = deployment;
      return status;
    }
    const bool was_there =
        caller.skip_measurement_wait ? Leave(deployment, status) : Remove(deployment, status);
    failure->is_unavailable = was_there && absl::IsUnavailable(status);
    return status;
  }
  ReplicateSoon();
  return deployment;
}

absl::StatusOr<Coordinator::DeploymentPtr> Coordinator::DeployWhereItFits(
    PlanningOptions planning, std::unique_ptr<PlannedModel> planned,
    const wire::LoadModelRequest& request, const wire::PlacementOptions& placement,
    DeploymentPtr instead_of, const OperationContext& caller) {
  planning.known = planned->model;
  planning.model_id = planned->model->id();
  const wire::ModelSource source = planned->source;
  LoadRetries retries(/*assigned=*/!placement.assign().empty(), planning.limits);
  const auto give_up = [&](const absl::Status& why) -> absl::StatusOr<DeploymentPtr> {
    if (instead_of != nullptr && !Remove(instead_of, why)) return nullptr;
    return why;
  };
  while (true) {
    LoadFailure failure;
    auto deployment = Deploy(std::move(planned), request, instead_of, caller, &failure);
    if (deployment.ok()) return deployment;
    const absl::Status why = deployment.status();
    if (failure.in_place != nullptr) instead_of = failure.in_place;
    if (!retries.OnFailed(failure.limit, failure.is_unavailable)) return give_up(why);
    planning.limits = retries.limits();
    LOG(WARNING) << why.message() << "; the layers are placed again";
    if (!caller.should_continue() ||
        !caller.note(absl::StrCat(why.message(), "; planning again…"))) {
      return give_up(absl::CancelledError("interrupted"));
    }
    auto again = PlanModel(planning, source, placement);
    for (const SteadyTime until = SteadyTime::Now() + kMemoryComesBackTime;
         absl::IsResourceExhausted(again.status()) && SteadyTime::Now() < until &&
         caller.should_continue();) {
      planning.pause(kMemoryComesBackPoll);  // the operating system frees it when it likes
      again = PlanModel(planning, source, placement);
    }
    // The next coordinator plans it.
    if (IsLeaderChanged(again.status())) return give_up(again.status());
    if (!again.ok()) {
      // By the nodes' reports there was enough room: the load's own message comes first.
      return give_up(absl::Status(again.status().code(), absl::StrCat(why.message(), "; then: ",
                                                                      again.status().message())));
    }
    planned = *std::move(again);
  }
}

}  // namespace strata
