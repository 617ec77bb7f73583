#include "coordinator/scheduler/scheduler.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "coordinator/scheduler/ngram_drafter.h"
#include "coordinator/scheduler/scheduler_impl.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

constexpr int64_t kRetryAfterMinMs = 1000;
constexpr int64_t kRetryAfterMaxMs = 60'000;

void AddTimings(const wire::Result& result, std::vector<StageTotal>* totals) {
  for (const wire::StageTiming& timing : result.timings()) {
    if (timing.stage() >= totals->size()) continue;
    StageTotal& total = (*totals)[timing.stage()];
    total.queue_us += timing.queue_us();
    total.compute_us += timing.compute_us();
    total.sample_us += timing.sample_us();
    total.bytes_in += timing.bytes_in();
    ++total.steps;
  }
}

// Tokens at the beginning of its context that stay however often it is shifted.
uint32_t KeptTokens(const GenerationRequest& request) {
  return std::min(request.keep_tokens, static_cast<uint32_t>(request.prompt.size()));
}

}  // namespace

absl::StatusOr<PipelineFacts> FactsOf(absl::Span<const wire::StageInfo> stages) {
  if (stages.empty()) return absl::InvalidArgumentError("the pipeline has no stages");
  PipelineFacts facts;
  facts.n_stages = static_cast<uint32_t>(stages.size());
  facts.n_ctx = stages[0].n_ctx();
  facts.n_slots = stages[0].n_seq_max();
  facts.n_batch = stages[0].n_batch();
  facts.n_vocab = stages[0].n_vocab();
  facts.cache.checkpoint = facts.cache.rewind = true;
  facts.n_checkpoints = stages[0].checkpoints();
  facts.kv_blocks_max = stages[0].kv_blocks_max();
  for (const wire::StageInfo& stage : stages) {
    if (stage.n_ctx() == 0 || stage.n_seq_max() == 0 || stage.n_batch() == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("stage ", stage.stage(), " does not report its limits"));
    }
    if (stage.n_ctx() != facts.n_ctx || stage.n_seq_max() != facts.n_slots) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stage ", stage.stage(), " has ", stage.n_seq_max(), " slots of ", stage.n_ctx(),
          " positions; the first has ", facts.n_slots, " of ", facts.n_ctx));
    }
    facts.n_batch = std::min(facts.n_batch, stage.n_batch());
    facts.cache.trim &= stage.cache().trim();
    facts.cache.copy &= stage.cache().copy();
    facts.cache.shift &= stage.cache().shift();
    facts.cache.checkpoint &= stage.cache().checkpoint();
    facts.cache.rewind &= stage.cache().rewind();
    facts.n_checkpoints = std::min(facts.n_checkpoints, stage.checkpoints());
    if (stage.kv_cells() != 0) {
      facts.kv_cells =
          facts.kv_cells == 0 ? stage.kv_cells() : std::min(facts.kv_cells, stage.kv_cells());
    }
    facts.kv_blocks_max = std::min(facts.kv_blocks_max, stage.kv_blocks_max());
    facts.kv_blocks.push_back(SplitKvNames(stage.kv_blocks()));
    const uint32_t window = stage.cache().window_tokens();
    uint32_t& smallest = facts.cache.window_tokens;
    if (window != 0) smallest = smallest == 0 ? window : std::min(smallest, window);
  }
  return facts;
}

absl::Status Scheduler::Impl::Check(const GenerationRequest& request) const {
  if (request.prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  // Where a sequence has filled its context, the last token needs no place there.
  const size_t length = request.prompt.size() + request.generated.size();
  const size_t needs_place = length - (request.generated.empty() ? 0 : 1);
  if (request.prompt.size() > facts.n_ctx || (needs_place > facts.n_ctx && !CanShift(request))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt has ", length, " tokens; the context is ", facts.n_ctx));
  }
  for (const auto* tokens : {&request.prompt, &request.generated}) {
    for (int32_t token : *tokens) {
      if (token < 0 || (facts.n_vocab != 0 && static_cast<uint32_t>(token) >= facts.n_vocab)) {
        return absl::InvalidArgumentError(
            absl::StrCat("the prompt has token ", token, "; the vocabulary has ", facts.n_vocab));
      }
    }
  }
  if (request.sampler.pooling() != wire::POOLING_OFF &&
      (!request.generated.empty() || request.shift_context)) {
    return absl::InvalidArgumentError("an embedding is of a prompt alone, which fits its context");
  }
  if (request.cache_scope.size() > kCacheScopeBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a cache scope has at most ", kCacheScopeBytesMax, " bytes"));
  }
  if (!request.mirostat_mu.empty() && request.mirostat_mu.size() != request.generated.size()) {
    return absl::InvalidArgumentError("mirostat_mu needs one value for each generated token");
  }
  return absl::OkStatus();
}

int64_t Scheduler::Impl::RetryAfter() const {
  const double rounds = static_cast<double>(queue.size() + 1) / facts.n_slots;
  return std::clamp(static_cast<int64_t>(rounds * request_us / 1000), kRetryAfterMinMs,
                    kRetryAfterMaxMs);
}

absl::StatusOr<uint64_t> Scheduler::Impl::Add(GenerationRequest request, int64_t now_us) {
  if (auto s = Check(request); !s.ok()) return s;
  const uint64_t id = last_request + 1;
  const bool begun = !request.generated.empty();
  if (absl::Status full = queue.Add(id, request.client, begun); !full.ok()) {
    ++stats.requests_refused;
    return WithRetryAfterMs(std::move(full), RetryAfter());
  }
  last_request = id;
  ++stats.requests;
  if (chunk_turns.try_emplace(request.client, last_tick + 1).second) ++last_tick;

  Request& r = requests[id];
  r.id = id;
  r.tokens = request.prompt;
  r.tokens.insert(r.tokens.end(), request.generated.begin(), request.generated.end());
  r.mu = request.mirostat_mu;
  const uint32_t n_generated = static_cast<uint32_t>(request.generated.size());
  r.is_fed_again = begun;
  r.tokens_left = request.tokens_max - std::min(request.tokens_max, n_generated);
  r.keep = KeptTokens(request);
  r.usage.prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  r.usage.prompt_stages.resize(facts.n_stages);
  r.usage.decode_stages.resize(facts.n_stages);
  r.added_us = now_us;
  r.input = std::move(request);
  // A scope of its own, in which nothing is.
  if (r.input.no_cache) absl::StrAppend(&r.input.cache_scope, " ", id);
  if (r.input.prediction.size() > facts.n_ctx) r.input.prediction.resize(facts.n_ctx);
  if (r.tokens_left == 0 || IsFull(r)) {
    End(id, absl::OkStatus(), FinishReason::kLength, Leave::kDrop, now_us);
  }
  return id;
}

void Scheduler::Impl::End(uint64_t id, absl::Status status, FinishReason reason, Leave leave,
                          int64_t now_us) {
  Request& r = requests.at(id);
  if (r.slot >= 0) {
    if (!r.is_kept()) leave = Leave::kDrop;
    if (leave == Leave::kKeep) slots.Store(r.slot);
    slots.Release(r.slot, leave == Leave::kKeep);
    std::erase(running, id);
    AddToMean(static_cast<double>(now_us - r.admitted_us), 8, &request_us);
  }
  if (r.admitted_us < 0) r.usage.queued_us = now_us - r.added_us;
  if (r.drafts) {
    for (const auto& drafter : drafters) drafter->End(id);
  }
  if (queue.Leave(id, r.input.client)) chunk_turns.erase(r.input.client);
  if (!status.ok()) {
    ++stats.requests_failed;
  } else if (reason == FinishReason::kCancelled) {
    ++stats.requests_cancelled;
  }
  SchedulerEvent& event = events.emplace_back();
  event.request = id;
  event.end = {.status = std::move(status), .reason = reason, .usage = std::move(r.usage)};
  requests.erase(id);
}

void Scheduler::Impl::Cancel(uint64_t id, Leave leave, int64_t now_us) {
  if (Find(id) == nullptr) return;
  const FinishReason reason =
      leave == Leave::kKeep ? FinishReason::kEndOfGeneration : FinishReason::kCancelled;
  End(id, absl::OkStatus(), reason, leave, now_us);
}

void Scheduler::Impl::ForgetKept() {
  slots.ForgetKept();
  for (const auto& drafter : drafters) drafter->ForgetEnded();
  forgets_kept = slots.has_edits();
}

Scheduler::Impl::InFlightStep Scheduler::Impl::TakeOldest() {
  InFlightStep flight = std::move(in_flight.front());
  in_flight.pop_front();
  slots.EndEdits(flight.edited);
  return flight;
}

void Scheduler::Impl::TakeTimings(const wire::Result& result, const InFlightStep& flight) {
  AddTimings(result, &stats.stages);
  const bool moves_blocks = !flight.stored.empty() || !flight.loaded.empty();
  for (const wire::StageTiming& timing : result.timings()) {
    if (flight.timing.size.rows == 0 || moves_blocks) break;
    // The last stage computed nothing for them.
    if (result.void_rows_size() > 0 && timing.stage() + 1 == facts.n_stages) continue;
    costs.Observe(timing.stage(), flight.timing.size,
                  int64_t{timing.compute_us()} + timing.sample_us());
  }
  for (const BatchSlice& slice : flight.slices) {
    Request* r = OwnerOf(slice);
    if (r == nullptr) continue;
    AddTimings(result, slice.is_prompt ? &r->usage.prompt_stages : &r->usage.decode_stages);
  }
}

void Scheduler::Impl::ObserveLoad(const wire::Result& result, const InFlightStep& flight) {
  if (flight.loaded.empty() || !costs.known()) return;
  double us = 0;
  for (const wire::StageTiming& timing : result.timings()) {
    const bool computes = flight.timing.size.rows > 0 && timing.stage() < facts.n_stages;
    us += timing.compute_us() - (computes ? costs.Us(timing.stage(), flight.timing.size) : 0);
  }
  AddToMean(std::max(us / flight.loaded_tokens, 0.01), 4, &load_us);
}

void Scheduler::Impl::TakeResult(const wire::Result& result, const InFlightStep& flight,
                                 int64_t now_us) {
  TakeTimings(result, flight);
  ObserveRoundTrip(result, flight, now_us);
  ObserveLoad(result, flight);
  for (const auto& [checkpoint, save] : flight.saved) slots.ConfirmSave(checkpoint, save);
  slots.ConfirmStore(flight.stored);
  if (flight.forgets_kept) forgets_kept = false;
  slots.ForgetBlocks(SplitKvNames(result.lost_blocks()));
  stats.checkpoints_used += flight.restored.size();
  int next_token = 0;
  for (const BatchSlice& slice : flight.slices) {
    const auto error =
        std::find_if(result.errors().begin(), result.errors().end(),
                     [&](const wire::SlotError& e) { return e.slot() == slice.slot; });
    const bool has_error = error != result.errors().end();
    const wire::SampledToken* token = nullptr;
    if (std::ranges::binary_search(result.void_rows(), slice.last_row)) {
      if (!flight.is_draft || OwnerOf(slice) != nullptr) {
        return TakeFailure(flight, absl::InternalError("the last stage left out a row"), now_us);
      }
      continue;
    }
    if (slice.samples && !has_error) {
      if (next_token == result.tokens_size() || result.tokens(next_token).slot() != slice.slot) {
        return TakeFailure(flight, absl::InternalError("the last stage left out a token"), now_us);
      }
      token = &result.tokens(next_token++);
    }
    // A draft whose sequence has left: its position may be another's by now.
    const bool is_kept = slots.slot(slice.slot).last_owner == slice.request;
    if (!flight.is_draft || is_kept) slots.Confirm(slice.slot, slice.generation, slice.end);
    Request* r = OwnerOf(slice);
    if (r == nullptr) continue;
    if (r->SequencePosition(slice.end) >= r->failed_at) {
      r->quarantined = false;
      r->failures = r->failed_at = 0;
    }
    ReportProgress(r, slice.end);
    if (has_error) {
      End(r->id, FromWire(error->status()), FinishReason::kLength, Leave::kKeep, now_us);
    } else if (token != nullptr) {
      TakeToken(r, *token, now_us);
    } else if (slots.slot(slice.slot).confirmed == facts.n_ctx) {
      ShiftContext(r);  // where it was shifted when the sequence was generated
    }
  }
}

void Scheduler::Impl::TakeToken(Request* request, const wire::SampledToken& token, int64_t now_us) {
  Request& r = *request;
  if (r.first_us < 0) r.first_us = now_us;
  r.usage.prompt_us = r.first_us - r.admitted_us;
  r.usage.decode_us = now_us - r.first_us;
  const bool has_more = token.embedding_size() > 0 || token.prompt_size() > 0;
  if (!token.end_of_generation() || has_more) {
    SchedulerEvent& event = events.emplace_back();
    event.request = r.id;
    event.token = token;
  }
  if (token.end_of_generation()) {
    if (!r.embeds()) r.usage.end_token = token.token();
    const Leave leave = r.embeds() ? Leave::kDrop : Leave::kKeep;
    return End(r.id, absl::OkStatus(), FinishReason::kEndOfGeneration, leave, now_us);
  }
  r.pipelines_broken = 0;
  r.is_fed_again = false;
  r.tokens.push_back(token.token());
  if (r.input.sampler.mirostat() != 0) r.mu.push_back(token.mirostat_mu());
  r.ready = ++last_tick;
  --r.tokens_left;
  ++r.usage.tokens;
  ++stats.tokens;
  CheckDraft(&r, now_us);
  if (r.tokens_left == 0 || IsFull(r)) {
    End(r.id, absl::OkStatus(), FinishReason::kLength, Leave::kKeep, now_us);
  } else if (r.kv_length() > facts.n_ctx) {
    ShiftContext(&r);
  }
}

void Scheduler::Impl::ReportProgress(Request* request, uint32_t done) {
  Request& r = *request;
  const bool is_prompt = r.tokens.size() == r.input.prompt.size();
  if (!r.input.with_progress || !is_prompt || done <= r.reported_done) return;
  r.reported_done = done;
  SchedulerEvent& event = events.emplace_back();
  event.request = r.id;
  event.progress = {.prompt_tokens = r.usage.prompt_tokens,
                    .cached_tokens = r.usage.cached_tokens,
                    .done_tokens = done};
}

bool Scheduler::Impl::CanShift(const GenerationRequest& request) const {
  // A shift rounds its cells again, and may round those of other requests beside them.
  return request.shift_context && !policy.exact && facts.cache.shift && facts.cache.trim &&
         KeptTokens(request) + 2 <= facts.n_ctx;
}

void Scheduler::Impl::ShiftContext(Request* request) {
  Request& r = *request;
  const uint32_t discard = (facts.n_ctx - r.keep) / 2;
  slots.Shift(r.slot, r.keep, discard);
  r.offset += discard;
  slots.Claim(r.slot, Goal(r));
}

void Scheduler::Impl::BeginPipeline(const PipelineFacts& pipeline) {
  facts = pipeline;
  LimitContext();
  costs = StepCosts(facts.n_stages);
  draft_trial = DraftTrial();
  round_trip_us = 0;
  load_us = 0;
  stats.stages.resize(facts.n_stages);
  last_step_id = last_prompt_step_id = last_failed_behind = 0;
  prompt_steps = 0;
  edit_failures = 0;
  for (auto& [id, r] : requests) {
    r.usage.prompt_stages.resize(facts.n_stages);
    r.usage.decode_stages.resize(facts.n_stages);
  }
  if (forgets_kept) ForgetKept();
}

bool Scheduler::Impl::Resume(const PipelineFacts& pipeline) {
  if (!in_flight.empty() || !slots.Resume(pipeline)) return false;
  BeginPipeline(pipeline);
  // The last stage's state of their sequences is not in its caches.
  for (const uint64_t id : std::vector<uint64_t>(running)) {
    Request& r = requests.at(id);
    r.needs_open = true;
    if (r.needs_every_row()) Preempt(&r);
  }
  return true;
}

void Scheduler::Impl::Restart(const PipelineFacts& pipeline, bool broke, int64_t now_us) {
  slots = SlotTable(pipeline, policy);
  BeginPipeline(pipeline);
  std::set<uint64_t> in_steps;
  for (const InFlightStep& flight : in_flight) {
    for (const BatchSlice& slice : flight.slices) in_steps.insert(slice.request);
  }
  in_flight.clear();
  for (auto id = running.rbegin(); id != running.rend(); ++id) {
    Request& r = requests.at(*id);
    r.slot = -1;
    FeedAgain(&r);
    r.is_fed_again = r.tokens.size() > r.input.prompt.size();
    if (broke && in_steps.contains(*id)) ++r.pipelines_broken;
    queue.PutBack(*id);
  }
  running.clear();
  std::vector<std::pair<uint64_t, absl::Status>> ended;
  for (auto& [id, r] : requests) {
    r.quarantined = false;
    r.failures = r.failed_at = 0;
    if (IsFull(r)) {
      ended.emplace_back(id, absl::ResourceExhaustedError(
                                 absl::StrCat("the request has ", r.tokens.size(),
                                              " tokens; the context is now ", facts.n_ctx)));
    } else if (r.pipelines_broken >= policy.pipelines_broken_max) {
      ended.emplace_back(
          id, absl::AbortedError(absl::StrCat("the stages failed ", policy.pipelines_broken_max,
                                              " times while this request was running")));
    }
  }
  for (const auto& [id, status] : ended) {
    End(id, status, FinishReason::kLength, Leave::kDrop, now_us);
  }
}

uint32_t Scheduler::Impl::in_flight_max() const {
  return policy.steps_in_flight_max != 0 ? std::max(policy.steps_in_flight_max, facts.n_stages)
                                         : facts.n_stages + 1;
}

Scheduler::Scheduler(const PipelineFacts& facts, SchedulerPolicy policy,
                     std::unique_ptr<Drafter> drafter, std::unique_ptr<Drafter> model_drafter)
    : impl_(std::make_unique<Impl>(facts, policy)) {
  if (drafter == nullptr) drafter = std::make_unique<NgramDrafter>();
  impl_->drafters.push_back(std::move(drafter));
  if (model_drafter != nullptr) impl_->drafters.push_back(std::move(model_drafter));
}
Scheduler::~Scheduler() = default;

absl::StatusOr<uint64_t> Scheduler::Add(GenerationRequest request, int64_t now_us) {
  return impl_->Add(std::move(request), now_us);
}

void Scheduler::Cancel(uint64_t request, Leave leave, int64_t now_us) {
  impl_->Cancel(request, leave, now_us);
}

std::optional<wire::Step> Scheduler::NextStep(int64_t now_us) { return impl_->NextStep(now_us); }

void Scheduler::OnResult(const wire::Result& result, int64_t now_us) {
  impl_->last_result_us = now_us;
  while (!impl_->in_flight.empty() && impl_->in_flight.front().step_id <= result.step_id()) {
    const Impl::InFlightStep flight = impl_->TakeOldest();
    if (flight.step_id == result.step_id()) {
      impl_->TakeResult(result, flight, now_us);
    } else {
      impl_->TakeFailure(flight, absl::DataLossError("the step has no result"), now_us);
    }
  }
}

void Scheduler::OnStepError(const wire::StepError& error, int64_t now_us) {
  impl_->last_result_us = now_us;
  while (!impl_->in_flight.empty() && impl_->in_flight.front().step_id <= error.step_id()) {
    const Impl::InFlightStep flight = impl_->TakeOldest();
    absl::Status status = FromWire(error.status());
    if (status.ok()) status = absl::UnknownError("a stage failed without a reason");
    impl_->TakeFailure(flight, status, now_us);
  }
}

void Scheduler::OnNotSent(uint64_t step_id, const absl::Status& why, int64_t now_us) {
  // It is the last one, unless the pipeline was replaced meanwhile.
  if (impl_->in_flight.empty() || impl_->in_flight.back().step_id != step_id) return;
  const Impl::InFlightStep flight = std::move(impl_->in_flight.back());
  impl_->in_flight.pop_back();
  impl_->slots.EndEdits(flight.edited);
  impl_->TakeFailure(flight, why, now_us);
}

bool Scheduler::Restart(const PipelineFacts& facts, SlotContents contents, bool broke,
                        int64_t now_us) {
  if (contents == SlotContents::kAsBefore && impl_->Resume(facts)) return true;
  impl_->Restart(facts, broke, now_us);
  if (contents != SlotContents::kNothing) impl_->slots.Empty();
  return false;
}

void Scheduler::ForgetKept() { impl_->ForgetKept(); }

void Scheduler::AllowDrafts(bool allowed) { impl_->drafts_stopped = !allowed; }

void Scheduler::EndAll(const absl::Status& status, int64_t now_us) {
  while (!impl_->requests.empty()) {
    impl_->End(impl_->requests.begin()->first, status, FinishReason::kCancelled, Leave::kDrop,
               now_us);
  }
}

std::vector<SchedulerEvent> Scheduler::TakeEvents() { return std::exchange(impl_->events, {}); }

bool Scheduler::idle() const { return impl_->requests.empty(); }

SchedulerStats Scheduler::Stats() const {
  SchedulerStats stats = impl_->stats;
  stats.waiting = static_cast<uint32_t>(impl_->queue.size());
  stats.running = static_cast<uint32_t>(impl_->running.size());
  stats.slots_kept = impl_->slots.n_kept();
  stats.checkpoints = impl_->slots.n_checkpoints();
  stats.kv_blocks = impl_->slots.n_blocks();
  stats.forgets_kept = impl_->forgets_kept;
  stats.steps_in_flight = static_cast<uint32_t>(impl_->in_flight.size());
  stats.drafts_in_flight = stats.steps_in_flight - impl_->n_in_flight();
  stats.kv_cells = impl_->slots.cells_max();
  stats.kv_cells_kept = impl_->slots.cells_kept();
  stats.kv_cells_used = impl_->slots.cells_owned() + stats.kv_cells_kept;
  return stats;
}

}  // namespace strata
