// What the scheduler does about a step that failed in one stage: the stages before have applied it,
// that one has its edits or a part of them, those behind have never seen it. Every slot that it
// touched is brought back to a known state in all stages by edits in the next step, and its
// sequences are fed again from there.
#include <algorithm>

#include "coordinator/scheduler_impl.h"

namespace strata {
namespace {

// Failures of steps that a request had alone.
constexpr uint32_t kFailuresMax = 3;

}  // namespace

void Scheduler::Impl::TakeFailure(const Flight& flight, const absl::Status& status,
                                  int64_t now_us) {
  ++stats.steps_failed;
  Blame(flight, status, now_us);
  const auto was_edited = [&](int32_t slot) {
    return std::any_of(flight.edited.begin(), flight.edited.end(),
                       [&](const auto& edited) { return edited.first == slot; });
  };
  for (const auto* saves : {&flight.saved, &flight.restored}) {
    for (const auto& [checkpoint, save] : *saves) slots.ForgetSave(checkpoint, save);
  }
  for (const Part& part : flight.parts) slots.ForgetSavesOf(part.slot);
  for (const auto& edited : flight.edited) slots.ForgetSavesOf(edited.first);
  // Slots of an older generation have been started anew by edits that follow this step.
  for (const auto& [slot, generation] : flight.edited) {
    if (slots.slot(slot).generation != generation) continue;
    Request* r = Find(slots.slot(slot).owner);
    slots.ResetAfterFailure(slot);
    if (r != nullptr) r->needs_open = true;
  }
  for (const Part& part : flight.parts) {
    if (!IsCurrent(part)) continue;
    Request* r = OwnerOf(part);
    const bool can_roll_back = r != nullptr && slots.CanRollBack() && r->is_first_text() &&
                               !absl::IsDataLoss(status) && !r->alone && r->failures == 0 &&
                               !was_edited(part.slot);
    if (can_roll_back) {
      slots.RollBack(part.slot);
    } else {
      slots.ResetAfterFailure(part.slot);
    }
    if (r != nullptr) r->needs_open = true;
  }
}

void Scheduler::Impl::Blame(const Flight& flight, const absl::Status& status, int64_t now_us) {
  // After a failure, the steps behind it that go on with the same sequences fail with it.
  const bool follows =
      std::any_of(flight.parts.begin(), flight.parts.end(),
                  [&](const Part& part) { return !IsCurrent(part); }) ||
      std::any_of(flight.edited.begin(), flight.edited.end(), [&](const auto& edited) {
        return slots.slot(edited.first).generation != edited.second;
      });
  if (flight.parts.empty()) {
    ++edit_failures;
    return;
  }
  edit_failures = 0;
  if (follows) return;
  std::vector<Request*> there;
  for (const Part& part : flight.parts) {
    if (Request* r = OwnerOf(part); r != nullptr) there.push_back(r);
  }
  if (there.size() > 1 || flight.parts.size() > 1) {
    for (Request* r : there) r->alone = true;
    return;
  }
  if (there.empty()) return;
  Request& r = *there[0];
  // Kept sequences may be what there was no room for.
  if (absl::IsResourceExhausted(status) && slots.has_kept()) return slots.DropKept();
  ++r.failures;
  if (r.failures < kFailuresMax && !absl::IsInvalidArgument(status)) return;
  End(r.id, status, FinishReason::kLength, Leave::kDrop, now_us);
}

}  // namespace strata
