// What the scheduler does about a step that failed in one stage: the stages before have applied it,
// that one has its edits or a part of them, those behind have never seen it. Every slot that it
// touched is brought back to a known state in all stages by edits in the next step, and its
// sequences are fed again from there.
#include <algorithm>

#include "coordinator/scheduler/scheduler_impl.h"

namespace strata {
namespace {

// Failures of steps that a request had alone.
constexpr uint32_t kFailuresMax = 3;

}  // namespace

void Scheduler::Impl::TakeFailure(const InFlightStep& flight, const absl::Status& status,
                                  int64_t now_us) {
  ++stats.steps_failed;
  last_failed_behind = last_step_id;
  Blame(flight, status, now_us);
  const auto was_edited = [&](int32_t slot) {
    return std::any_of(flight.edited.begin(), flight.edited.end(),
                       [&](const auto& edited) { return edited.first == slot; });
  };
  for (const auto* saves : {&flight.saved, &flight.restored}) {
    for (const auto& [checkpoint, save] : *saves) slots.ForgetSave(checkpoint, save);
  }
  for (const BatchSlice& part : flight.parts) slots.ForgetSavesOf(part.slot);
  for (const auto& edited : flight.edited) slots.ForgetSavesOf(edited.first);
  // Slots of an older generation have been started anew by edits that follow this step.
  for (const auto& [slot, generation] : flight.edited) {
    LoseSlot(slot, generation, /*lost=*/true);
  }
  for (const BatchSlice& part : flight.parts) {
    if (!IsCurrent(part)) {
      if (absl::IsDataLoss(status)) LoseSlot(part.slot, part.generation, /*lost=*/true);
      continue;
    }
    Request* r = OwnerOf(part);
    const bool can_roll_back = r != nullptr && slots.CanRollBack() && r->is_first_request() &&
                               !absl::IsDataLoss(status) && !r->alone && r->failures == 0 &&
                               !was_edited(part.slot);
    if (can_roll_back) {
      slots.RollBack(part.slot);
      r->needs_open = true;
    } else {
      LoseSlot(part.slot, part.generation, absl::IsDataLoss(status));
    }
  }
}

void Scheduler::Impl::LoseSlot(int32_t slot, uint64_t generation, bool lost) {
  for (const uint64_t owner : slots.ResetAfterFailure(slot, generation, lost)) {
    FeedAgain(&requests.at(owner));
  }
}

void Scheduler::Impl::Blame(const InFlightStep& flight, const absl::Status& status,
                            int64_t now_us) {
  // After a failure, the steps behind it that go on with the same sequences fail with it.
  const bool follows =
      std::any_of(flight.parts.begin(), flight.parts.end(),
                  [&](const BatchSlice& part) { return !IsCurrent(part); }) ||
      std::any_of(flight.edited.begin(), flight.edited.end(), [&](const auto& edited) {
        return slots.slot(edited.first).generation != edited.second;
      });
  if (flight.parts.empty()) {
    ++edit_failures;
    return;
  }
  edit_failures = 0;
  if (follows) return;
  if (flight.parts.size() > 1) {
    for (const BatchSlice& part : flight.parts) {
      Request* r = OwnerOf(part);
      if (r == nullptr) continue;
      r->alone = true;
      r->failures = 0;
      r->failed_at = r->SequencePosition(part.end);
    }
    return;
  }
  Request* const owner = OwnerOf(flight.parts[0]);
  if (owner == nullptr) return;
  Request& r = *owner;
  // Kept sequences may be what there was no room for.
  if (absl::IsResourceExhausted(status) && slots.has_kept()) return slots.DropKept();
  const uint32_t at = r.SequencePosition(flight.parts[0].end);
  if (r.failures > 0 && at >= r.failed_at) {
    ++r.failures;
  } else {  // for the first time, or at a place before, which it had got past
    r.failures = 1;
    r.failed_at = at;
  }
  // Edits may meet what an earlier failure has left; rows that come alone are the text's own.
  const bool is_its_own = absl::IsInvalidArgument(status) && flight.edited.empty();
  if (r.failures < kFailuresMax && !is_its_own) return;
  End(r.id, status, FinishReason::kLength, Leave::kDrop, now_us);
}

}  // namespace strata
