#include "coordinator/models/model_retention.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"

namespace strata {
namespace {

bool IsAtRest(const Deployment& model) {
  return model.serving() || (model.lost_a_stage() && !model.recovering());
}

absl::Duration KeepAliveOf(const wire::LoadModelRequest& pin) {
  if (pin.keep_alive_ms() == 0) return absl::InfiniteDuration();
  return std::max(absl::Milliseconds(pin.keep_alive_ms()), ModelRetention::kSettles);
}

bool MayBeEvicted(const wire::LoadModelRequest& pin, bool by_hand) {
  return !pin.pinned() && (!by_hand || pin.keep_alive_ms() != 0);
}

}  // namespace

std::shared_ptr<void> ModelRetention::BeginRequest(const std::string& id, SteadyTime now) {
  Use& use = uses_[id];
  use.idle_since = now;
  ++*use.requests;
  return {nullptr, [requests = use.requests](void*) { --*requests; }};
}

bool ModelRetention::IsInUse(const ModelTable& models, const std::string& id) const {
  const auto use = uses_.find(id);
  return models.IsHeld(id) || (use != uses_.end() && *use->second.requests > 0);
}

void ModelRetention::Observe(const ModelTable& models, SteadyTime now) {
  std::erase_if(uses_, [&](const auto& use) {
    return models.Get(use.first) == nullptr && *use.second.requests == 0;
  });
  for (const auto& [id, model] : models.models()) {
    const auto [use, is_new] = uses_.try_emplace(id);
    // Its keep-alive begins once it serves.
    if (is_new || IsInUse(models, id) || !(model->serving() || model->lost_a_stage())) {
      use->second.idle_since = now;
    }
  }
}

absl::Duration ModelRetention::IdleFor(const ModelTable& models, const std::string& id,
                                       SteadyTime now) const {
  const auto use = uses_.find(id);
  if (use == uses_.end() || IsInUse(models, id)) return absl::ZeroDuration();
  return std::max(now - use->second.idle_since, absl::ZeroDuration());
}

ModelRetention::DeploymentPtr ModelRetention::NextExpired(const ModelTable& models,
                                                          SteadyTime now) {
  Observe(models, now);
  for (const auto& [id, origin] : models.pins()) {
    const DeploymentPtr model = models.Get(id);
    if (model == nullptr || !IsAtRest(*model)) continue;
    if (IdleFor(models, id, now) >= KeepAliveOf(origin)) return model;
  }
  return nullptr;
}

SteadyTime ModelRetention::next_at(const ModelTable& models) const {
  SteadyTime at = SteadyTime::InfiniteFuture();
  for (const auto& [id, origin] : models.pins()) {
    const auto use = uses_.find(id);
    const DeploymentPtr model = models.Get(id);
    if (use == uses_.end() || IsInUse(models, id) || model == nullptr || !IsAtRest(*model)) {
      continue;
    }
    at = std::min(at, use->second.idle_since + KeepAliveOf(origin));
  }
  return at;
}

bool ModelRetention::AnyMayBeEvicted(const ModelTable& models, bool by_hand) {
  return absl::c_any_of(models.pins(), [&](const auto& pin) {
    return models.Get(pin.first) != nullptr && MayBeEvicted(pin.second, by_hand);
  });
}

std::vector<ModelRetention::DeploymentPtr> ModelRetention::Evictable(const ModelTable& models,
                                                                     bool by_hand, SteadyTime now) {
  Observe(models, now);
  std::vector<std::pair<SteadyTime, DeploymentPtr>> idle;
  for (const auto& [id, origin] : models.pins()) {
    const DeploymentPtr model = models.Get(id);
    if (model == nullptr || !MayBeEvicted(origin, by_hand) || !model->serving() ||
        IdleFor(models, id, now) < kSettles) {
      continue;
    }
    idle.emplace_back(uses_.at(id).idle_since, model);
  }
  std::stable_sort(idle.begin(), idle.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<DeploymentPtr> order;
  for (auto& [since, model] : idle) order.push_back(std::move(model));
  return order;
}

}  // namespace strata
