// How the scheduler forms steps: which requests get a slot, which sequences decode together, and
// how many rows of which prompts ride along.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/scheduler/scheduler_impl.h"
#include "transport/rpc/request_log.h"

namespace strata {
namespace {

// Rows of prompts beside decodes while the steps' durations are not known.
constexpr uint32_t kFirstChunkTokens = 16;
// The share of the limit on a token's wait behind prompts that is used on average: steps vary. With
// this much, 19 tokens of 20 keep to the limit where the speed changes by 1.4 times every few
// seconds.
constexpr int64_t kMeanWaitPercent = 75;
// The share that a step of prompts only may use: the decodes behind it get its real duration.
constexpr int64_t kPromptStepPercent = 90;
// Cells left free for each running sequence when another one is admitted, so that they do not
// preempt each other at once.
constexpr uint32_t kHeadroomTokens = 16;
// The distance of a checkpoint from the prompt's end: the tokens behind it open the turn, which may
// differ in the next prompt.
constexpr uint32_t kCheckpointBeforeEnd = 16;
constexpr uint32_t kCheckpointTokensMin = 64;
// A beginning of so many tokens that another request is feeding is waited for rather than fed
// again.
constexpr uint32_t kPrefixWorthWaiting = 64;
// Loads that did not pay are tried again, after some requests more the more they were slower.
constexpr double kLoadDoubt = 0.95;
// Of all sequences that open in one step, which is one frame's header (kFrameHeaderBytesMax).
constexpr size_t kOpenBytesMax = 8 << 20;

}  // namespace

wire::SequenceOpen Scheduler::Impl::OpenOf(const Request& r) const {
  wire::SequenceOpen open;
  open.set_slot(r.slot);
  const auto prompt_end = r.tokens.begin() + static_cast<int64_t>(r.input.prompt.size());
  open.mutable_prompt()->Add(r.tokens.begin(), prompt_end);
  open.mutable_generated()->Add(prompt_end, r.tokens.end());
  *open.mutable_sampler() = r.input.sampler;
  open.mutable_mirostat_mu()->Add(r.mu.begin(), r.mu.end());
  open.set_sequence_offset(static_cast<int32_t>(r.offset));
  open.set_request_id(PlainRequestId(r.input.id));
  return open;
}

uint32_t Scheduler::Impl::AddRows(Builder* b, Request* request, uint32_t rows_max) {
  Request& r = *request;
  const auto begin = static_cast<uint32_t>(slots.slot(r.slot).tokens.size());
  uint32_t end = std::min(Goal(r), begin + rows_max);
  // Beyond its claim there is room for single rows only, as MakeCells() finds it.
  const uint32_t claim = slots.slot(r.slot).claim;
  if (begin < claim) end = std::min(end, claim);
  if (policy.exact) end = std::min(end, ExactEnd(r, begin));
  for (uint32_t position : r.checkpoints) {
    if (position <= begin || position >= end) continue;
    end = position;
    break;
  }
  if (end <= begin) return 0;
  if (r.needs_open) {
    wire::SequenceOpen open = OpenOf(r);
    const size_t bytes = open.ByteSizeLong();
    if (b->open_bytes > 0 && b->open_bytes + bytes > kOpenBytesMax) return 0;  // with the next step
    b->open_bytes += bytes;
    *b->step.add_opens() = std::move(open);
    r.needs_open = false;
  }
  for (uint32_t position = begin; position < end; ++position) {
    b->AddRow(r.KvToken(position), position, r.slot);
    slots.Append(r.slot, r.KvToken(position));
  }
  if (policy.exact && end - begin == ExactChunk(facts, policy)) slots.EndChunk(r.slot);
  const bool samples = end == r.kv_length();
  if (samples) b->step.add_sample_rows(b->rows() - 1);
  if (std::find(r.checkpoints.begin(), r.checkpoints.end(), end) != r.checkpoints.end()) {
    b->to_checkpoint.push_back(r.slot);
  }
  const bool is_prompt = r.first_us < 0 || end - begin > 1 || !samples;
  b->flight.slices.push_back({.request = r.id,
                              .slot = r.slot,
                              .generation = slots.slot(r.slot).generation,
                              .end = end,
                              .last_row = b->rows() - 1,
                              .samples = samples,
                              .is_prompt = is_prompt});
  b->flight.timing.size += StepSize::Of(begin, end - begin);
  if (samples) b->flight.timing.next += StepSize::Of(end, 1);
  return end - begin;
}

uint32_t Scheduler::Impl::ExactEnd(const Request& r, uint32_t begin) const {
  const auto prompt = static_cast<uint32_t>(r.input.prompt.size());
  if (r.SequencePosition(begin) >= prompt) return begin + 1;
  const uint32_t chunk = ExactChunk(facts, policy);
  return std::min(prompt, (begin / chunk + 1) * chunk);
}

void Scheduler::Impl::Preempt(Request* r) {
  if (r->is_kept()) slots.Store(r->slot);
  slots.Release(r->slot, /*keep=*/false);
  std::erase(running, r->id);
  r->slot = -1;
  FeedAgain(r);
  queue.PutBack(r->id);
  ++stats.preemptions;
}

void Scheduler::Impl::FeedAgain(Request* request) {
  Request& r = *request;
  const bool was_shifted = std::exchange(r.offset, 0) != 0;
  r.needs_open = true;
  if (r.slot < 0 || !was_shifted) return;
  // It claimed less than a whole context, and needs a whole one before it is shifted again.
  const uint32_t claim = slots.slot(r.slot).claim;
  if (claim >= Goal(r)) return;
  if (slots.MakeRoom(Goal(r) - claim)) {
    slots.Claim(r.slot, Goal(r));
  } else {
    Preempt(&r);
  }
}

// Makes room for one more row of each of these requests. Where cells are short, the request that
// was admitted last is preempted first, and leaves `rows`.
void Scheduler::Impl::MakeCells(std::vector<Request*>* rows) {
  while (!rows->empty()) {
    const auto n_cells = std::count_if(rows->begin(), rows->end(), [&](const Request* r) {
      const SlotTable::Slot& slot = slots.slot(r->slot);
      return slot.claim <= slot.tokens.size();
    });
    if (slots.MakeRoom(static_cast<uint64_t>(n_cells))) return;
    Request* last = &requests.at(running.back());
    std::erase(*rows, last);
    Preempt(last);
  }
}

void Scheduler::Impl::PlanCheckpoints(Request* request, uint32_t known) {
  Request& r = *request;
  r.checkpoints.clear();
  if (!slots.wants_checkpoints() || r.needs_every_row() || !r.is_kept()) return;
  const auto cached = static_cast<uint32_t>(slots.slot(r.slot).tokens.size());
  // Where this prompt parts from a known sequence, others will part too.
  const auto length = static_cast<uint32_t>(r.input.prompt.size());
  if (known > cached && known >= std::max(policy.prefix_tokens_min, 1u) && known < length) {
    r.checkpoints.push_back(known);
  }
  if (length >= kCheckpointTokensMin && length - kCheckpointBeforeEnd > std::max(known, cached)) {
    r.checkpoints.push_back(length - kCheckpointBeforeEnd);
  }
}

SlotTable::Sequence Scheduler::Impl::SequenceOf(Request* request) {
  Request& r = *request;
  // A queued request is asked for often, and its tokens rarely become more.
  if (slots.keeps_blocks() && r.blocks.size() != r.tokens.size() / kKvBlockTokens) {
    r.blocks = KvNamesOf(r.input.cache_scope, r.tokens);
  }
  return {.tokens = absl::MakeConstSpan(r.tokens).first(Goal(r)),
          .scope = r.input.cache_scope,
          .blocks = r.blocks,
          .may_shift = CanShift(r.input)};
}

bool Scheduler::Impl::LoadPays(const Request& request) const {
  if (load_us == 0 || !costs.known()) return true;
  double feed_us = 0;  // of the slowest stage: the others compute beside it
  for (uint32_t k = 0; k < facts.n_stages; ++k) {
    feed_us = std::max(feed_us, costs.Us(k, StepSize::Of(Goal(request) / 2, kKvBlockTokens)));
  }
  return load_us * kKvBlockTokens < feed_us;
}

bool Scheduler::Impl::Place(Request* request, int64_t now_us) {
  Request& r = *request;
  SlotTable::Sequence kv = SequenceOf(&r);
  kv.may_load = LoadPays(r);
  const uint64_t headroom = running.size() * kHeadroomTokens;
  if (!running.empty() && slots.cells_owned() + kv.tokens.size() + headroom > slots.cells_max() &&
      slots.cells_max() < uint64_t{facts.n_ctx} * facts.n_slots) {
    return false;
  }
  const uint32_t known = slots.KnownPrefix({.tokens = r.input.prompt, .scope = kv.scope});
  const auto place = slots.Acquire(r.id, kv, /*from_first=*/r.needs_every_row());
  if (!place) return false;
  if (!kv.may_load) load_us *= kLoadDoubt;
  r.slot = place->slot;
  r.needs_open = true;
  r.ready = r.admitted = ++last_tick;
  running.push_back(r.id);
  PlanCheckpoints(&r, known);
  if (place->loads) stats.loaded_tokens += place->cached;
  if (r.admitted_us < 0) {
    r.admitted_us = now_us;
    r.usage.queued_us = now_us - r.added_us;
    r.usage.cached_tokens = std::min(place->cached, r.usage.prompt_tokens);
    stats.prompt_tokens += r.usage.prompt_tokens;
    stats.cached_tokens += r.usage.cached_tokens;
    ReportProgress(&r, r.usage.cached_tokens);
  }
  return true;
}

// Feeding the same tokens twice would delay both requests.
bool Scheduler::Impl::WaitsForPrefix(Request* waiting) {
  const Request& request = *waiting;
  const bool can_copy = facts.cache.copy && facts.cache.trim && facts.cache.window_tokens == 0;
  if (!policy.keep_prefixes || !can_copy || CanShift(request.input) || request.needs_every_row()) {
    return false;
  }
  std::optional<uint32_t> cached;
  return std::any_of(running.begin(), running.end(), [&](uint64_t id) {
    const Request& other = requests.at(id);
    if (!other.is_kept() || CanShift(other.input) ||
        other.input.cache_scope != request.input.cache_scope ||
        (request.is_fed_again && !other.is_fed_again)) {
      return false;
    }
    const std::vector<int32_t>&a = request.tokens, &b = other.tokens;
    const auto same = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
    auto shared = static_cast<uint32_t>(std::min<size_t>(same, a.size() - 1));
    if (policy.exact) {
      shared = std::min(shared, static_cast<uint32_t>(other.input.prompt.size()));
      shared -= shared % ExactChunk(facts, policy);
    }
    if (shared < kPrefixWorthWaiting || slots.slot(other.slot).confirmed >= shared) return false;
    if (!cached) cached = slots.CachedPrefix(SequenceOf(waiting));
    return *cached < shared;
  });
}

void Scheduler::Impl::Admit(int64_t now_us) {
  const auto may = [this](uint64_t id) { return !WaitsForPrefix(&requests.at(id)); };
  while (running.size() < facts.n_slots) {
    std::optional<uint64_t> next = queue.NextBegun(may);
    if (!next.has_value()) {
      // Those that have begun get their slots before new ones do.
      if (running.size() + queue.n_begun() >= facts.n_slots) return;
      next = queue.NextNew(may);
    }
    // A request that does not fit blocks the others: small ones would keep a large one out for
    // ever.
    if (!next.has_value()) return;
    Request& r = requests.at(*next);
    if (!Place(&r, now_us)) return;
    queue.Take(r.id, r.input.client);
  }
}

uint32_t Scheduler::Impl::NDecoding() const {
  return static_cast<uint32_t>(std::count_if(running.begin(), running.end(), [&](uint64_t id) {
    return Remaining(requests.at(id)) <= 1;
  }));
}

// With n stages, decodes go in n groups of about the same size, so that each stage has one.
void Scheduler::Impl::AddDecodes(Builder* b) {
  const auto n_groups_in_flight =
      std::count_if(in_flight.begin(), in_flight.end(),
                    [](const InFlightStep& flight) { return flight.timing.next.rows > 0; });
  if (n_groups_in_flight >= facts.n_stages) return;
  std::vector<Request*> ready;
  for (uint64_t id : running) {
    Request& r = requests.at(id);
    if (Remaining(r) == 1) ready.push_back(&r);
  }
  const uint32_t n_decoding = NDecoding();
  const uint32_t n_groups = std::min(facts.n_stages, std::max(n_decoding, 1u));
  const uint32_t rows = std::min((n_decoding + n_groups - 1) / n_groups, facts.n_batch);
  std::sort(ready.begin(), ready.end(),
            [](const Request* a, const Request* b_) { return a->ready < b_->ready; });
  ready.resize(std::min<size_t>(ready.size(), rows));
  MakeCells(&ready);
  for (Request* r : ready) b->flight.decode_rows += AddRows(b, r, 1);
}

uint32_t Scheduler::Impl::PromptRows(const Builder& b, const Request& next, int64_t now_us) const {
  const uint32_t rows_max = std::min(std::max(policy.chunk_tokens, 1u), facts.n_batch - b.rows());
  const uint32_t n_decoding = NDecoding();
  if (n_decoding == 0) {
    StepSize left;
    for (uint64_t id : running) {
      const Request& r = requests.at(id);
      left += StepSize::Of(Goal(r) - Remaining(r), Remaining(r));
    }
    const uint64_t position = left.cells / std::max(left.rows, 1u);
    return ChunkForThroughput(costs, {.rows_left = left.rows,
                                      .position = static_cast<uint32_t>(position),
                                      .chunk_min = rows_max,
                                      .chunk_max = facts.n_batch - b.rows(),
                                      .stage_us_max = int64_t{policy.chunk_ms} * 1000});
  }
  // Fewer groups of decodes than stages: prompts have steps of their own, so many for each round of
  // decodes that all stages have work. A decode of one row may cost half of one of two.
  const uint32_t n_apart = facts.n_stages - std::min(facts.n_stages, n_decoding);
  if (n_apart > 0) {
    if (b.rows() > 0 || prompt_steps >= n_apart) return 0;
  } else if (b.rows() == 0 && n_in_flight() >= facts.n_stages) {
    return 0;  // no stage is without work
  }
  const bool prompts_in_flight = std::any_of(
      in_flight.begin(), in_flight.end(),
      [](const InFlightStep& flight) { return flight.timing.size.rows > flight.decode_rows; });
  if (!costs.known()) return prompts_in_flight ? 0 : std::min(rows_max, kFirstChunkTokens);
  const int64_t wait_us =
      int64_t{next.is_fed_again ? policy.refeed_wait_ms : policy.prompt_wait_ms} * 1000;
  const int64_t most_us = b.rows() > 0 ? wait_us : wait_us * kPromptStepPercent / 100;
  std::vector<PendingStep> pending;
  for (const InFlightStep& flight : in_flight) pending.push_back(flight.timing);
  const uint32_t rows = ChunkWithin(costs, {.now_us = now_us,
                                            .last_result_us = last_result_us,
                                            .in_flight = pending,
                                            .decodes = b.flight.timing.size,
                                            .prompt_position = Goal(next) - Remaining(next),
                                            .chunk_max = rows_max,
                                            .n_apart = n_apart,
                                            .wait_us = most_us,
                                            .mean_wait_us = wait_us * kMeanWaitPercent / 100});
  // Prompts make progress, however slow the stages are.
  const bool is_due = in_flight.empty() || last_step_id >= last_prompt_step_id + in_flight_max();
  return rows == 0 && is_due ? std::min(rows_max, 1u) : rows;
}

// The prompt of the client whose turn it is; of one client's, the one that came first. Sequences
// that are fed again come before new ones.
Scheduler::Impl::Request* Scheduler::Impl::NextPrompt(const Builder& b) {
  Request* next = nullptr;
  uint64_t turn = 0;
  for (uint64_t id : running) {
    Request& r = requests.at(id);
    if (b.Has(id) || Remaining(r) < 2) continue;
    const uint64_t chunk = chunk_turns.at(r.input.client);
    const bool is_first =
        next == nullptr || (r.is_fed_again == next->is_fed_again ? chunk < turn : r.is_fed_again);
    if (is_first) {
      next = &r;
      turn = chunk;
    }
  }
  return next;
}

void Scheduler::Impl::AddPrompts(Builder* b, int64_t now_us) {
  Request* r = NextPrompt(*b);
  if (r == nullptr || b->rows() >= facts.n_batch) return;
  const bool is_fed_again = r->is_fed_again;
  uint32_t left = PromptRows(*b, *r, now_us);
  for (; r != nullptr && r->is_fed_again == is_fed_again && left > 0; r = NextPrompt(*b)) {
    const uint32_t rows = AddRows(b, r, left);
    if (rows == 0) return;
    left -= rows;
    b->prompt_rows += rows;
    chunk_turns.at(r->input.client) = ++last_tick;
  }
}

void Scheduler::Impl::AddQuarantined(Builder* b) {
  std::vector<Request*> first;
  for (uint64_t id : running) {
    Request& r = requests.at(id);
    if (!r.quarantined || Remaining(r) == 0) continue;
    first = {&r};
    break;
  }
  MakeCells(&first);
  for (Request* r : first) {
    const uint32_t rows = AddRows(b, r, std::min(std::max(policy.chunk_tokens, 1u), facts.n_batch));
    if (rows == 1) b->flight.decode_rows = 1;
  }
}

void Scheduler::Impl::AddExact(Builder* b) {
  std::vector<Request*> next;
  for (uint64_t id : running) {
    Request& r = requests.at(id);
    if (Remaining(r) == 1 && (next.empty() || r.ready < next[0]->ready)) next = {&r};
  }
  Request* const prompt = NextPrompt(*b);
  // A chunk of a prompt for each round of the decoding requests, or where none is ready: then as
  // many at a time as there are stages that would be idle.
  const uint32_t n_decoding = NDecoding();
  const auto prompts_in_flight = static_cast<uint32_t>(std::count_if(
      in_flight.begin(), in_flight.end(),
      [](const InFlightStep& flight) { return flight.timing.size.rows > flight.decode_rows; }));
  const uint32_t prompts_max =
      n_decoding == 0 ? in_flight_max() : facts.n_stages - std::min(facts.n_stages - 1, n_decoding);
  const bool is_due = next.empty() || last_step_id >= last_prompt_step_id + n_decoding;
  if (prompt != nullptr && is_due && prompts_in_flight < prompts_max) {
    b->prompt_rows = AddRows(b, prompt, facts.n_batch);
    chunk_turns.at(prompt->input.client) = ++last_tick;
    if (b->prompt_rows > 0) return;
  }
  MakeCells(&next);
  for (Request* r : next) b->flight.decode_rows = AddRows(b, r, 1);
}

void Scheduler::Impl::Builder::AddEdit(wire::KvEdit edit, const SlotTable& slots) {
  const auto kind = edit.kind();
  if (kind == wire::KvEdit::SAVE || kind == wire::KvEdit::RESTORE) {
    (kind == wire::KvEdit::SAVE ? flight.saved : flight.restored)
        .emplace_back(edit.checkpoint(), slots.SaveOf(edit.checkpoint()));
  }
  if (kind == wire::KvEdit::STORE || kind == wire::KvEdit::LOAD) {
    const std::vector<KvName> names = SplitKvNames(edit.blocks());
    std::vector<KvName>& blocks = kind == wire::KvEdit::STORE ? flight.stored : flight.loaded;
    blocks.insert(blocks.end(), names.begin(), names.end());
    if (kind == wire::KvEdit::LOAD) {
      flight.loaded_tokens += slots.slot(edit.slot()).confirmed;
    }
  }
  if (kind == wire::KvEdit::FORGET) {
    const std::vector<KvName> names = SplitKvNames(edit.blocks());
    flight.forgotten.insert(flight.forgotten.end(), names.begin(), names.end());
  }
  if (ChangesSlot(edit)) {
    flight.edited.emplace_back(edit.slot(), slots.slot(edit.slot()).generation);
  }
  *step.add_edits() = std::move(edit);
}

std::optional<wire::Step> Scheduler::Impl::NextStep(int64_t now_us) {
  const bool is_full = n_in_flight() >= in_flight_max();
  // Steps in flight when a step failed fail too where they continue its sequences. New steps that
  // mix rows fed again with rows of sequences that are yet to fail would make failures follow each
  // other for ever.
  if (!in_flight.empty() && in_flight.front().step_id <= last_failed_behind) return std::nullopt;
  slots.StoreWaiting();  // before others get the slots
  if (!is_full) Admit(now_us);
  for (const uint64_t id : running) {
    const Request& r = requests.at(id);
    if (r.is_kept()) slots.StoreGrown(r.slot, static_cast<uint32_t>(r.input.prompt.size()));
  }
  Builder b;
  // A quarantined request has the pipeline alone, so that its failure touches no other rows.
  const bool has_quarantined = std::any_of(
      running.begin(), running.end(), [&](uint64_t id) { return requests.at(id).quarantined; });
  if (is_full) {
    // Drafts alone are beside the limit.
  } else if (has_quarantined) {
    if (!in_flight.empty()) return std::nullopt;
    AddQuarantined(&b);
  } else if (policy.exact) {
    AddExact(&b);
  } else {
    AddDecodes(&b);
    AddPrompts(&b, now_us);
  }
  if (b.rows() == 0 && !has_quarantined) AddDraft(&b);
  if (b.rows() == 0) {
    // Edits go alone only when no step with rows can follow soon.
    constexpr uint32_t kEditFailuresMax = 3;
    if (!slots.has_edits() || !in_flight.empty() || edit_failures >= kEditFailuresMax) {
      return std::nullopt;
    }
  }
  for (wire::KvEdit& edit : slots.TakeEdits()) b.AddEdit(std::move(edit), slots);
  b.flight.forgets_kept = forgets_kept;
  for (int32_t slot : b.to_checkpoint) {  // with the step after
    slots.Save(slot);
    if (slots.stores_states()) slots.StoreNow(slot);
  }
  b.step.set_step_id(++last_step_id);
  b.flight.step_id = last_step_id;
  if (b.prompt_rows > 0) last_prompt_step_id = last_step_id;
  prompt_steps = b.flight.decode_rows > 0 ? 0 : prompt_steps + 1;
  b.flight.timing.submitted_us = now_us;
  ++stats.steps;
  stats.rows += b.rows();
  stats.cells += b.flight.timing.size.cells;
  ++stats.steps_by_rows[ClassOf(kStepRowsClasses, b.rows())];
  in_flight.push_back(std::move(b.flight));
  return std::move(b.step);
}

}  // namespace strata
