// Recovery from a step that failed in one stage: the stages before it have applied the step, the
// stage has applied its edits or a part of them, the stages behind have never seen it. Every slot
// that the step touched is brought back to a known state in all stages by edits in the next step,
// and its sequences are fed again from there.
#include <algorithm>

#include "coordinator/scheduler/scheduler_impl.h"

namespace strata {
namespace {

// Failures of a quarantined request's own steps.
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
  slots.ForgetBlocks(flight.loaded);
  slots.ForgetUnconfirmedBlocks();
  slots.ForgetAgain(flight.forgotten);
  for (const BatchSlice& slice : flight.slices) slots.ForgetSavesOf(slice.slot);
  for (const auto& edited : flight.edited) slots.ForgetSavesOf(edited.first);
  // Slots of an older generation have been started anew by edits that follow this step.
  for (const auto& [slot, generation] : flight.edited) {
    Request* const loading = flight.loaded.empty() ? nullptr : Find(slots.slot(slot).owner);
    if (loading != nullptr && loading->first_us < 0) loading->usage.cached_tokens = 0;
    LoseSlot(slot, generation, /*lost=*/true);
  }
  for (const BatchSlice& slice : flight.slices) {
    if (!IsCurrent(slice)) {
      if (!absl::IsDataLoss(status)) continue;
      // A sequence goes on with the positions before a wrong draft.
      const bool goes_on = flight.is_draft && slots.slot(slice.slot).last_owner == slice.request;
      LoseSlot(slice.slot, goes_on ? slots.slot(slice.slot).generation : slice.generation,
               /*lost=*/true);
      continue;
    }
    Request* r = OwnerOf(slice);
    const bool can_roll_back = r != nullptr && slots.CanRollBack() && r->is_first_request() &&
                               !absl::IsDataLoss(status) && !r->quarantined && r->failures == 0 &&
                               !was_edited(slice.slot) && !r->needs_every_row();
    if (can_roll_back) {
      slots.RollBack(slice.slot);
      r->needs_open = true;
    } else {
      LoseSlot(slice.slot, slice.generation, absl::IsDataLoss(status));
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
  // After a failure, the steps behind it that continue the same sequences fail with it.
  const bool follows =
      std::any_of(flight.slices.begin(), flight.slices.end(),
                  [&](const BatchSlice& slice) { return !IsCurrent(slice); }) ||
      std::any_of(flight.edited.begin(), flight.edited.end(), [&](const auto& edited) {
        return slots.slot(edited.first).generation != edited.second;
      });
  if (flight.slices.empty()) {
    ++edit_failures;
    return;
  }
  edit_failures = 0;
  if (flight.is_draft) {  // it is no part of its sequence
    Request* const owner = Find(flight.slices[0].request);
    if (owner != nullptr) ++owner->drafts_failed;
    return;
  }
  if (follows) return;
  if (flight.slices.size() > 1) {
    for (const BatchSlice& slice : flight.slices) {
      Request* r = OwnerOf(slice);
      if (r == nullptr) continue;
      r->quarantined = true;
      r->failures = 0;
      r->failed_at = r->SequencePosition(slice.end);
    }
    return;
  }
  Request* const owner = OwnerOf(flight.slices[0]);
  if (owner == nullptr) return;
  Request& r = *owner;
  // Kept sequences may take the room that was missing.
  if (absl::IsResourceExhausted(status) && slots.has_kept()) return slots.DropKept();
  const uint32_t at = r.SequencePosition(flight.slices[0].end);
  if (r.failures > 0 && at >= r.failed_at) {
    ++r.failures;
  } else {  // the first failure, or one at an earlier position that was passed before
    r.failures = 1;
    r.failed_at = at;
  }
  // Edits may fail on what an earlier failure has left behind; rows without edits are the request's
  // own.
  const bool is_its_own = absl::IsInvalidArgument(status) && flight.edited.empty();
  if (r.failures < kFailuresMax && !is_its_own) return;
  End(r.id, status, FinishReason::kLength, Leave::kDrop, now_us);
}

}  // namespace strata
