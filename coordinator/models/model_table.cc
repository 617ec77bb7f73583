#include "coordinator/models/model_table.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/models/model_match.h"
#include "transport/base/short_id.h"

namespace strata {

ModelTable::DeploymentPtr ModelTable::Get(const std::string& id) const {
  const auto found = models_.find(id);
  return found == models_.end() ? nullptr : found->second;
}

bool ModelTable::Has(const DeploymentPtr& deployment) const {
  return Get(deployment->model_id()) == deployment;
}

PrintableText ModelTable::ShownName(const DeploymentPtr& deployment) const {
  const bool is_shared = absl::c_any_of(models_, [&](const auto& other) {
    return other.first != deployment->model_id() && other.second->name() == deployment->name();
  });
  return ShownModelName(deployment->name(), deployment->model_id(), is_shared);
}

absl::StatusOr<ModelTable::DeploymentPtr> ModelTable::Find(const std::string& model) const {
  std::vector<PrintableText> shown;
  std::vector<std::string> listed;
  std::vector<ModelNames> names;
  std::vector<DeploymentPtr> found;
  shown.reserve(models_.size());  // the names point into it
  for (const auto& [id, deployment] : models_) {
    const PrintableText& name = shown.emplace_back(ShownName(deployment));
    listed.push_back(absl::StrCat(name, " (", ShortModelId(id), ")"));
    names.push_back({.name = name, .path = deployment->planned().source.path(), .id = id});
    found.push_back(deployment);
  }
  const std::vector<size_t> meant = MeantModels(model, names);
  if (meant.size() == 1) return found[meant.front()];
  const PrintableText query = PrintableText::OfPath(model);
  const std::string there = listed.empty() ? "no model is loaded (strata load MODEL)"
                                           : absl::StrCat("loaded: ", absl::StrJoin(listed, ", "));
  if (!meant.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(query.empty() ? "which model?" : absl::StrCat(query, " means several models"),
                     "; ", there));
  }
  return absl::NotFoundError(query.empty() ? there : absl::StrCat("no model ", query, "; ", there));
}

bool ModelTable::AnyRecovering() const {
  return absl::c_any_of(models_, [](const auto& model) { return model.second->recovering(); });
}

bool ModelTable::Replace(const DeploymentPtr& before, const DeploymentPtr& next) {
  const auto found = models_.find(before->model_id());
  if (found == models_.end() || found->second != before) return false;
  found->second = next;
  return true;
}

bool ModelTable::Remove(const DeploymentPtr& deployment) {
  const auto found = models_.find(deployment->model_id());
  if (found == models_.end() || found->second != deployment) return false;
  leases_.erase(found->first);
  pins_.erase(found->first);
  models_.erase(found);
  return true;
}

std::vector<ModelTable::DeploymentPtr> ModelTable::Clear() {
  std::vector<DeploymentPtr> all;
  for (auto& [id, model] : models_) all.push_back(std::move(model));
  models_.clear();
  leases_.clear();
  pins_.clear();
  return all;
}

void ModelTable::Pin(const DeploymentPtr& deployment) {
  wire::LoadModelRequest& origin = pins_[deployment->model_id()];
  origin = deployment->Origin();
  origin.clear_hold();
  origin.clear_make_room();  // a reload takes no other model's room
}

void ModelTable::Extend(const std::string& id, const wire::LoadModelRequest& request) {
  const auto pin = pins_.find(id);
  if (pin == pins_.end()) return;
  wire::LoadModelRequest& origin = pin->second;
  const bool is_forever = origin.keep_alive_ms() == 0 || request.keep_alive_ms() == 0;
  origin.set_keep_alive_ms(is_forever ? 0
                                      : std::max(origin.keep_alive_ms(), request.keep_alive_ms()));
  origin.set_pinned(origin.pinned() || request.pinned());
}

bool ModelTable::SetKeepAlive(const std::string& id, int64_t keep_alive_ms) {
  const auto pin = pins_.find(id);
  if (pin == pins_.end() || pin->second.pinned() || pin->second.keep_alive_ms() == keep_alive_ms) {
    return false;
  }
  pin->second.set_keep_alive_ms(keep_alive_ms);
  return true;
}

std::optional<uint64_t> ModelTable::Join(const DeploymentPtr& there,
                                         const wire::LoadModelRequest& request) {
  if (!Has(there)) return std::nullopt;
  const std::string& id = there->model_id();
  const auto pin = pins_.find(id);
  const bool is_pinned = pin != pins_.end();
  if (request.hold()) {
    if (is_pinned && pin->second.keep_alive_ms() == 0) return 0;  // it stays as it is
    leases_[id].insert(++last_lease_);
    return last_lease_;
  }
  if (is_pinned) {
    Extend(id, request);
    return 0;
  }
  leases_.erase(id);
  Pin(there);
  pins_[id].set_keep_alive_ms(request.keep_alive_ms());
  pins_[id].set_pinned(request.pinned());
  return 0;
}

uint64_t ModelTable::OnLoaded(const DeploymentPtr& loaded, bool hold) {
  const uint64_t lease = hold ? ++last_lease_ : 0;
  if (models_.contains(loaded->model_id())) {
    if (hold) {
      leases_[loaded->model_id()] = {lease};
    } else {
      Pin(loaded);
    }
  }
  return lease;
}

bool ModelTable::HasLease(uint64_t lease) const {
  return absl::c_any_of(leases_, [&](const auto& of) { return of.second.contains(lease); });
}

ModelTable::DeploymentPtr ModelTable::Release(uint64_t lease) {
  for (auto& [id, leases] : leases_) {
    if (leases.erase(lease) == 0) continue;
    if (!leases.empty()) return nullptr;
    if (pins_.contains(id)) {
      leases_.erase(id);
      return nullptr;
    }
    const DeploymentPtr last = models_.at(id);
    Remove(last);
    return last;
  }
  return nullptr;
}

}  // namespace strata
