// Carries out a plan, and plans again where there was less memory or disk than it counted on, or
// the connection to a node broke.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/models/coordinator.h"
#include "coordinator/models/load_retries.h"
#include "coordinator/request/request_status.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

// Stages that were still loading when another one failed are cancelled, not waited for.
constexpr absl::Duration kMemoryComesBackTime = absl::Seconds(3);
constexpr absl::Duration kMemoryComesBackPoll = absl::Milliseconds(300);

}  // namespace

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
