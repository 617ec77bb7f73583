// A deployment takes over from another one that serves: which caches come along, how long the load
// of its stages may go on, and who has the requests and the stages afterwards. A state machine
// without I/O, thread or clock. Not thread-safe.
//
// First the next plan's other stages are loaded beside those that work; then `from` yields its
// stages, TakeOver(), and the stages that stay are loaded into the next plan.
#pragma once

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/models/deployment.h"
#include "coordinator/models/model_planner.h"
#include "coordinator/models/model_table.h"

namespace strata {

// For each stage of `planned`, the stages of `from` that have its caches. Empty: caches do not
// move, since kept stages are of some older plan, or no stage of `from` stays.
std::vector<std::vector<CacheSource>> CachesFor(const PlannedModel& planned,
                                                const Deployment& from);

class LiveMigration {
 public:
  using DeploymentPtr = ModelTable::DeploymentPtr;
  // No drafts are computed as long as it lives: `next` copies the caches.
  LiveMigration(DeploymentPtr from, DeploymentPtr next)
      : from_(std::move(from)), next_(std::move(next)) {
    from_->engine()->AllowDrafts(false);
  }
  ~LiveMigration() { from_->engine()->AllowDrafts(true); }
  LiveMigration(const LiveMigration&) = delete;
  LiveMigration& operator=(const LiveMigration&) = delete;

  // The load of `next` is cancelled where this is false. Half a take-over is of no use.
  bool MayGoOn(bool should_continue) const {
    return takes_over_ || (should_continue && from_->serving());
  }
  void BeginTakeOver() { takes_over_ = true; }
  // `yielded`: what Deployment::YieldStages() of `from` returned, which this returns, too.
  // kCancelled: the model was unloaded meanwhile, or the node `stops`.
  absl::StatusOr<bool> TakeOver(const absl::StatusOr<bool>& yielded, bool stops,
                                ModelTable* models);
  // Until then, `from` serves on where the load of `next` fails; afterwards `next` is recovered.
  bool has_taken_over() const { return has_taken_over_; }
  // Whether the loaded stages that the next plan does not keep are unloaded when its load has ended
  // with `loaded`. They stay where `next` lost a stage, since its recovery may keep them.
  bool UnloadsStaleStages(const absl::Status& loaded, const ModelTable& models) const {
    return has_taken_over_ && (loaded.ok() || !models.Has(next_));
  }

 private:
  const DeploymentPtr from_, next_;
  bool takes_over_ = false;
  bool has_taken_over_ = false;
};

}  // namespace strata
