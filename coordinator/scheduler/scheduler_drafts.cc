// Speculation: rows of drafts, which follow a sequence's last token through the stages, one a
// step, so that stages which would wait for that token's result compute what is likely to come
// next. The last stage samples as ever and says behind which drafts it did not, so what is
// generated does not depend on them. A wrong draft costs time only where a stage would not have
// been idle (PipeInfer: Butler et al., 2024, arXiv:2407.11798).
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/scheduler/scheduler_impl.h"

namespace strata {
namespace {

// A failed step stops the pipeline until those behind it are through.
constexpr uint32_t kDraftsFailedMax = 3;
constexpr double kLatestDraft = 1.0 / 32;  // weight of the latest outcome

}  // namespace

uint32_t Scheduler::Impl::Window(const Request& r) const {
  if (!costs.known() || round_trip_us == 0) return facts.n_stages;
  double slowest_us = 1;
  for (uint32_t stage = 0; stage < facts.n_stages; ++stage) {
    slowest_us = std::max(slowest_us, costs.Us(stage, StepSize::Of(Fed(r), 1)));
  }
  const double round = std::max(round_trip_us / slowest_us, 1.0);
  // A token's time in steps: one more in flight wastes nothing where drafts are right; behind a
  // wrong one the next row waits for what is in flight.
  const auto time = [&](double n) {
    return accepted_share * std::max(1.0, round / n) + (1 - accepted_share) * std::max(round, n);
  };
  const double few = std::floor(round), many = std::ceil(round);
  const double steps = time(many) < time(few) ? many : few;
  return static_cast<uint32_t>(std::min<double>(steps, kDraftsInFlightMax));
}

bool Scheduler::Impl::MayDraft(const Request& r) const {
  const bool is_generated = r.tokens.size() > r.input.prompt.size();
  if (SpeculationOf(r) == wire::SPECULATION_OFF || !is_generated || Remaining(r) > 0 ||
      r.needs_open || r.quarantined || r.failures > 0 || r.drafts_failed >= kDraftsFailedMax) {
    return false;
  }
  // The row before the drafts and each of them give a token.
  const SlotTable::Slot& slot = slots.slot(r.slot);
  return slot.tokens.size() < facts.n_ctx && slot.drafts.size() + 2 <= r.tokens_left &&
         slots.HasRoomForDraft();
}

std::optional<Scheduler::Impl::Draft> Scheduler::Impl::DraftFor(const Request& request,
                                                                absl::Span<const int32_t> drafts) {
  for (size_t i = 0; i < drafters.size(); ++i) {
    if (!drafters[i]->Serves(SpeculationOf(request))) continue;
    if (const auto token = drafters[i]->Draft(request.id, drafts)) {
      return Draft{.token = *token, .drafter = i};
    }
  }
  return std::nullopt;
}

std::optional<Scheduler::Impl::Draft> Scheduler::Impl::NextDraft(Request* request) {
  Request& r = *request;
  if (!r.drafts) {
    r.drafts = true;
    for (const auto& drafter : drafters) {
      drafter->Begin({.request = r.id,
                      .tokens = r.tokens,
                      .prompt_tokens = r.input.prompt.size(),
                      .sampler = &r.input.sampler,
                      .prediction = r.input.prediction,
                      .adapts = Adapts(r),
                      .scope = r.input.cache_scope,
                      .is_kept = r.is_kept()});
    }
  }
  if (Adapts(r) && !draft_trial.drafts()) return std::nullopt;
  const SlotTable::Slot& slot = slots.slot(r.slot);
  return DraftFor(r, absl::MakeConstSpan(slot.tokens).last(slot.drafts.size()));
}

void Scheduler::Impl::AddDraft(Builder* b) {
  // SchedulerPolicy::exact promises that nothing but the sequence decides its last bits; cells that
  // hold drafts meanwhile may round otherwise on some devices.
  if (!facts.cache.rewind || facts.n_stages < 2 || policy.exact) return;
  if (NDecoding() != running.size() || queue.size() > 0 || running.size() >= facts.n_stages ||
      drafts_stopped) {
    return;
  }
  std::vector<Request*> may;
  for (uint64_t id : running) {
    Request& r = requests.at(id);
    if (MayDraft(r) && in_flight.size() < Window(r)) may.push_back(&r);
  }
  std::stable_sort(may.begin(), may.end(), [this](const Request* a, const Request* b_) {
    return slots.slot(a->slot).drafts.size() < slots.slot(b_->slot).drafts.size();
  });
  for (Request* r : may) {
    const std::optional<Draft> draft = NextDraft(r);
    if (!draft || draft->token < 0) continue;
    if (facts.n_vocab != 0 && static_cast<uint32_t>(draft->token) >= facts.n_vocab) continue;
    const auto position = static_cast<uint32_t>(slots.slot(r->slot).tokens.size());
    b->AddRow(draft->token, position, r->slot);
    b->step.add_sample_rows(0);
    b->step.add_draft_rows(0);
    const SlotTable::DraftOrigin origin = {
        .drafter = draft->drafter,
        .depth = ClassOf(kDraftDepths, slots.slot(r->slot).drafts.size() + 1)};
    slots.AppendDraft(r->slot, draft->token, origin);
    b->flight.slices.push_back({.request = r->id,
                                .slot = r->slot,
                                .generation = slots.slot(r->slot).generation,
                                .end = position + 1,
                                .samples = true});
    b->flight.is_draft = true;
    b->flight.decode_rows = 1;
    b->flight.timing.size = StepSize::Of(position, 1);
    ++r->usage.draft_tokens;
    ++stats.drafts[origin.drafter][origin.depth].computed;
    return;
  }
}

void Scheduler::Impl::ObserveRoundTrip(const wire::Result& result, const InFlightStep& flight,
                                       int64_t now_us) {
  const bool is_one_row = flight.timing.size.rows == 1 && flight.decode_rows == 1;
  if (!is_one_row || result.void_rows_size() > 0) return;
  int64_t us = now_us - flight.timing.submitted_us;
  for (const wire::StageTiming& timing : result.timings()) us -= timing.queue_us();
  AddToMean(static_cast<double>(std::max<int64_t>(us, 1)), 8, &round_trip_us);
}

void Scheduler::Impl::CheckDraft(Request* request, int64_t now_us) {
  Request& r = *request;
  if (r.drafts) {
    const bool is_tried = running.size() == 1 && Adapts(r);
    if (r.draftable_us >= 0 && is_tried) draft_trial.Observe(now_us - r.draftable_us);
    for (const auto& drafter : drafters) drafter->Append(r.id, r.tokens.back());
    r.draftable_us = is_tried && DraftFor(r, {}) ? now_us : -1;
  }
  const SlotTable::Slot& slot = slots.slot(r.slot);
  if (slot.drafts.empty()) return;
  const bool is_right = slot.tokens[slot.tokens.size() - slot.drafts.size()] == r.tokens.back();
  accepted_share += ((is_right ? 1 : 0) - accepted_share) * kLatestDraft;
  if (is_right) {
    const SlotTable::DraftOrigin origin = slots.AcceptDraft(r.slot);
    ++stats.drafts[origin.drafter][origin.depth].accepted;
    ++r.usage.accepted_tokens;
  } else {
    slots.Rewind(r.slot);
  }
}

}  // namespace strata
