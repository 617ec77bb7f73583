#include "coordinator/models/live_migration.h"

#include "transport/base/epoch.h"

namespace strata {

std::vector<std::vector<CacheSource>> CachesFor(const PlannedModel& planned,
                                                const Deployment& from) {
  std::vector<std::vector<CacheSource>> caches;
  for (size_t i = 0; i < planned.plan.stages.size(); ++i) {
    caches.push_back(from.CachesOf(planned.plan.stages[i].layers));
    if (caches[i].empty()) return {};
    if (i >= planned.kept.size() || !planned.kept[i]) continue;
    const wire::KeptStage &kept = *planned.kept[i], &had = caches[i].front().stage;
    if (CompareEpochs(kept.epoch(), had.epoch()) != 0 || kept.stage() != had.stage()) return {};
  }
  return caches;
}

absl::StatusOr<bool> LiveMigration::TakeOver(const absl::StatusOr<bool>& yielded, bool stops,
                                             ModelTable* models) {
  if (!yielded.ok()) return yielded;
  if (stops || !models->Replace(from_, next_)) {
    return absl::CancelledError("it was unloaded meanwhile");
  }
  next_->TakeRequests(from_->TransferRequests());
  has_taken_over_ = true;
  return yielded;
}

}  // namespace strata
