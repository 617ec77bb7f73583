#include "coordinator/models/model_recovery.h"

#include <algorithm>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "coordinator/models/reusable_stages.h"

namespace strata {
namespace {

// A model that is lost again within that long may be what breaks its workers.
constexpr absl::Duration kHealthyTime = absl::Seconds(30);
constexpr uint32_t kRecoveriesInARowMax = 5;
// Between the second try of a row and the one before; doubles with each further one.
constexpr absl::Duration kPause = absl::Milliseconds(250);
// So long nodes may be out of reach before requests end.
constexpr absl::Duration kPatience = absl::Seconds(10);

bool WasHealthy(const Deployment& lost) {
  return lost.served_for() >= kHealthyTime || !lost.recovering();
}

bool LacksDisk(const std::optional<CapacityLimit>& limit) { return limit && limit->of_disk(); }

// How long it is left alone yet. There is nothing to wait for where it is known what the plan
// lacked.
absl::Duration PauseOf(const Deployment& lost) {
  if (lost.recoveries_in_a_row() == 0 || WasHealthy(lost)) return absl::ZeroDuration();
  if (LacksDisk(CapacityLimitOf(lost.planned(), lost.why()))) return absl::ZeroDuration();
  return (1 << lost.recoveries_in_a_row()) * kPause - lost.lost_for();
}

}  // namespace

SteadyTime RecoverySchedule::next_at() const {
  return std::min({retry_at_, deferred_until_, paused_until_});
}

RecoverySchedule::Round RecoverySchedule::Begin(const ModelTable& models,
                                                const ReloadQueue& reloads, bool may_act,
                                                SteadyTime now) {
  Round round;
  const bool again = now >= retry_at_;
  const bool deferred = deferred_until_ != SteadyTime::InfiniteFuture();
  const bool all = retry_ || room_ || deferred;
  for (const auto& [id, entry] : reloads.entries()) {
    if (all || (again && entry.MayLoadLater())) round.reload.push_back(id);
  }
  paused_until_ = deferred_until_ = SteadyTime::InfiniteFuture();
  for (const auto& [id, model] : models.models()) {
    if (!may_act) break;
    const bool retry = retry_ || (again && IsCapacityError(model->why()));
    if (!model->recovering() && !(retry && model->lost_a_stage())) continue;
    const absl::Duration pause = PauseOf(*model);
    if (pause <= absl::ZeroDuration()) {
      round.recover.push_back(model);
    } else {
      paused_until_ = std::min(paused_until_, now + pause);
    }
  }
  if (retry_) retry_after_ = kRetryAfter;
  if (retry_ || again) retry_at_ = SteadyTime::InfiniteFuture();
  lost_ = retry_ = room_ = false;
  return round;
}

void RecoverySchedule::End(const ModelTable& models, const ReloadQueue& reloads, bool is_leader,
                           bool deferred, SteadyTime now) {
  deferred_until_ = deferred ? now + kDeferredFor : SteadyTime::InfiniteFuture();
  bool any_lost = false, wants_retry = false;
  if (is_leader) {
    any_lost = !reloads.entries().empty();
    wants_retry = absl::c_any_of(reloads.entries(),
                                 [](const auto& entry) { return entry.second.MayLoadLater(); });
    for (const auto& [id, model] : models.models()) {
      if (!model->lost_a_stage()) continue;
      any_lost = true;
      wants_retry = wants_retry || (!model->recovering() && IsCapacityError(model->why()));
    }
  }
  if (!any_lost) {
    retry_at_ = SteadyTime::InfiniteFuture();
    retry_after_ = kRetryAfter;
  }
  if (wants_retry && retry_at_ == SteadyTime::InfiniteFuture()) {
    retry_at_ = now + retry_after_;
    retry_after_ = std::min(2 * retry_after_, kRetryAfterMax);
  }
}

RecoveryDecision DecideRecovery(const Deployment& lost) {
  RecoveryDecision decision;
  const absl::Status why = lost.why();
  const std::optional<CapacityLimit> limit = CapacityLimitOf(lost.planned(), why);
  const bool lacks_disk = LacksDisk(limit);  // which breaks nothing
  decision.is_healthy = WasHealthy(lost);
  decision.in_a_row = decision.is_healthy ? 0 : lost.recoveries_in_a_row();
  decision.next_in_a_row = decision.in_a_row + (lacks_disk ? 0 : 1);
  decision.is_of_wrong_numbers = limit && limit->wrong_numbers;
  if (!decision.is_healthy) decision.limits = lost.limits();
  if (limit) decision.limits.push_back(*limit);
  if (lacks_disk && lost.limits().size() >= kCapacityLimitsMax) {
    decision.give_up = why;
  } else if (decision.in_a_row >= kRecoveriesInARowMax && !lacks_disk) {
    decision.give_up =
        absl::AbortedError(absl::StrCat("its stages were lost ", decision.in_a_row + 1,
                                        " times, one after the other: ", why.message()));
  }
  return decision;
}

bool WaitsForReturn(const Deployment& lost, bool was_recovering, bool lost_a_node,
                    const absl::Status& why) {
  const bool may_return =
      absl::IsUnavailable(why) || (absl::IsResourceExhausted(why) && lost_a_node);
  return may_return && was_recovering && lost.lost_for() < kPatience;
}

}  // namespace strata
