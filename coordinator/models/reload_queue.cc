#include "coordinator/models/reload_queue.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "coordinator/models/model_match.h"
#include "coordinator/request/request_status.h"
#include "shard/model/model_file.h"

namespace strata {
namespace {

bool Means(const std::string& model, const std::string& id, const ReloadQueue::Entry& entry) {
  const PrintableText name = entry.Name();
  const ModelNames names = {.name = name, .path = entry.request.source().path(), .id = id};
  return MatchModel(model, names) != ModelMatch::kNone;
}

}  // namespace

PrintableText ReloadQueue::Entry::Name() const {
  return PrintableText::From(request.name().empty() ? ModelFileStem(request.source().path())
                                                    : absl::string_view(request.name()));
}

absl::Status ReloadQueue::Entry::WhyNotHere() const {
  return WithRetryAfterMs(
      absl::UnavailableError(
          why.ok() ? absl::StrCat(Name(), " is to stay loaded, and is being loaded again")
                   : absl::StrCat(Name(), " is to stay loaded, and cannot be loaded again yet: ",
                                  why.message())),
      kRetrySoonMs);
}

bool ReloadQueue::Learn(std::map<std::string, wire::LoadModelRequest> reloads,
                        const ModelTable& models, size_t entries_max) {
  is_unknown_ = false;
  bool any = false;
  for (auto& [id, request] : reloads) {
    if (models.Get(id) != nullptr || entries_.contains(id)) continue;
    if (entries_.size() >= entries_max) break;
    entries_[id] = {.request = std::move(request), .why = absl::OkStatus()};
    any = true;
  }
  return any;
}

void ReloadQueue::Forget() {
  is_unknown_ = true;
  entries_.clear();
  held_.clear();
}

void ReloadQueue::Add(const std::string& id, wire::LoadModelRequest request,
                      const absl::Status& why) {
  entries_[id] = {.request = std::move(request), .why = why};
}

void ReloadQueue::OnTried(const std::string& id, const absl::Status& status) {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return;
  if (status.ok()) {
    entries_.erase(entry);
  } else {
    entry->second.why = status;
  }
}

std::optional<std::string> ReloadQueue::Match(const std::string& model) const {
  std::optional<std::string> match;
  for (const auto& [id, entry] : entries_) {
    if (!Means(model, id, entry)) continue;
    if (match.has_value()) return std::nullopt;
    match = id;
  }
  return match;
}

absl::Status ReloadQueue::WhyNotHere(const std::string& model) const {
  for (const auto& [id, entry] : entries_) {
    if (Means(model, id, entry)) return entry.WhyNotHere();
  }
  return absl::OkStatus();
}

bool ReloadQueue::MayLoadSoon() const {
  return is_unknown_ ||
         absl::c_any_of(entries_, [](const auto& entry) { return entry.second.why.ok(); });
}

std::set<std::string> ReloadQueue::KeptIds(SteadyTime now) {
  std::erase_if(held_, [now](const auto& held) { return held.second < now; });
  std::set<std::string> ids(loading_.begin(), loading_.end());
  for (const auto& [id, entry] : entries_) ids.insert(id);
  for (const auto& [id, until] : held_) ids.insert(id);
  return ids;
}

}  // namespace strata
