#include "coordinator/models/desired_models.h"

#include <utility>

#include "absl/status/status.h"

namespace strata {

std::map<std::string, wire::LoadModelRequest> ModelsOf(const DesiredState& desired) {
  std::map<std::string, wire::LoadModelRequest> models;
  for (const std::string& one : desired.models) {
    wire::LoadModelRequest origin;
    if (!origin.ParseFromString(one) || origin.model_id().empty()) continue;
    models[origin.model_id()] = std::move(origin);
  }
  return models;
}

bool StaysLoaded(const wire::LoadModelRequest& request) { return !request.hold(); }

void DesiredModels::Decide(const std::string& id, std::optional<wire::LoadModelRequest> origin) {
  pending_[id] = std::move(origin);
  ++decided_;
}

void DesiredModels::Forget() {
  pending_.clear();
  stored_ = applied_ = decided_;
}

std::optional<std::vector<std::string>> DesiredModels::Next(const DesiredState& desired) {
  if (pending_.empty()) return std::nullopt;
  std::map<std::string, wire::LoadModelRequest> models = ModelsOf(desired);
  bool changed = false;
  for (auto& [id, origin] : std::exchange(pending_, {})) {
    const auto there = models.find(id);
    if (!origin.has_value()) {
      changed = models.erase(id) > 0 || changed;
    } else if (there == models.end() ||
               there->second.SerializeAsString() != origin->SerializeAsString()) {
      models[id] = *std::move(origin);
      changed = true;
    }
  }
  applied_ = decided_;
  if (!changed) return std::nullopt;
  std::vector<std::string> next;
  for (const auto& [id, origin] : models) next.push_back(origin.SerializeAsString());
  return next;
}

void DesiredModels::OnStored() { stored_ = applied_; }

DesiredModels::Followed DesiredModels::Follow(const DesiredState& desired, size_t entries_max,
                                              ModelTable* models, ReloadQueue* reloads) const {
  Followed followed;
  std::map<std::string, wire::LoadModelRequest> wanted = ModelsOf(desired);
  for (const auto& [id, origin] : pending_) {
    wanted.erase(id);
    if (origin.has_value()) wanted[id] = *origin;
  }
  for (const auto& [id, deployment] : std::map(models->models())) {
    if (models->pins().contains(id) && !wanted.contains(id)) {
      models->Remove(deployment);
      followed.unloads.push_back(deployment);
    } else if (wanted.contains(id) && models->IsHeld(id)) {
      models->Join(deployment, wanted.at(id));
    }
  }
  for (const auto& [id, entry] : std::map(reloads->entries())) {
    if (!wanted.contains(id)) reloads->Remove(id);
  }
  // One that is still being loaded for a caller is pinned when the queue has its turn.
  for (const auto& [id, origin] : wanted) {
    if (models->Get(id) == nullptr || models->pins().contains(id) || pending_.contains(id))
      continue;
    reloads->Add(id, origin, absl::OkStatus());
    followed.reloads = true;
  }
  followed.reloads = reloads->Learn(std::move(wanted), *models, entries_max) || followed.reloads;
  return followed;
}

}  // namespace strata
