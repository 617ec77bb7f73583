// The scheduler's internals: requests and their states. scheduler.cc takes requests and results,
// scheduler_step.cc forms steps, scheduler_drafts.cc those of drafts, scheduler_failure.cc
// recovers from failed steps.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/request/fair_queue.h"
#include "coordinator/scheduler/draft_trial.h"
#include "coordinator/scheduler/drafter.h"
#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/slot_table.h"
#include "coordinator/scheduler/step_costs.h"

namespace strata {

// The class of a value, by the upper ends of all classes but the last.
template <size_t n>
size_t ClassOf(const std::array<uint32_t, n>& ends, size_t value) {
  return static_cast<size_t>(std::lower_bound(ends.begin(), ends.end(), value) - ends.begin());
}

// Adds to a running mean of about the last `n` values; 0: there is none yet.
inline void AddToMean(double value, double n, double* mean) {
  *mean = *mean == 0 ? value : *mean + (value - *mean) / n;
}

struct Scheduler::Impl {
  struct Request {
    uint64_t id = 0;
    GenerationRequest input;
    std::vector<int32_t> tokens;  // prompt, generated
    std::vector<float> mu;        // mirostat's running value after each generated token
    std::vector<KvName> blocks;   // of `tokens` when they were last needed
    uint32_t tokens_left = 0;
    // Behind the first `keep` tokens, position in the sequence minus position in the KV cache:
    // rises when its context is shifted, and is 0 again when its KV is lost.
    uint32_t offset = 0;
    uint32_t keep = 0;

    // While it has a slot.
    int32_t slot = -1;
    bool needs_open = false;    // the last stage does not have the sequence
    bool drafts = false;        // the drafter has it
    int64_t draftable_us = -1;  // when its last token came, if there was a draft of the next
    uint64_t admitted = 0;      // rises
    uint64_t ready = 0;         // rises; when its next token could first be fed
    // It was being generated when stages or a coordinator were lost, and has had no token since.
    bool is_fed_again = false;
    // Prompt positions behind which a checkpoint is saved, rising.
    std::vector<uint32_t> checkpoints;

    // It was in a step that failed, where its rows ended at `failed_at` in the sequence.
    // `quarantined`: it runs in steps of its own until it is past that, to find the cause;
    // `failures` of these.
    bool quarantined = false;
    uint32_t failures = 0;
    uint32_t failed_at = 0;
    uint32_t drafts_failed = 0;  // steps of its drafts
    // Of the prompt, as was reported last; nothing before its first slot.
    std::optional<uint32_t> reported_done;
    uint32_t pipelines_broken = 0;  // while it ran in them, since its last token

    GenerationUsage usage;
    int64_t added_us = 0;
    int64_t admitted_us = -1;
    int64_t first_us = -1;

    // Positions that its KV would take if the context had no end.
    uint32_t kv_length() const { return static_cast<uint32_t>(tokens.size()) - offset; }
    int32_t KvToken(uint32_t position) const {
      return tokens[position < keep ? position : position + offset];
    }
    uint32_t SequencePosition(uint32_t position) const {
      return position <= keep ? position : position + offset;
    }
    bool is_first_request() const { return offset == 0; }
    // Whether the caches keep it for others.
    bool is_kept() const { return !embeds() && !input.no_cache; }
    bool embeds() const { return input.sampler.pooling() != wire::POOLING_OFF; }
    // The last stage pools the states of its rows, or scores its prompt, from the first row on.
    bool needs_every_row() const {
      return embeds() || (input.sampler.prompt_logprobs() && tokens.size() == input.prompt.size());
    }
  };

  // Rows of one request in a step.
  struct BatchSlice {
    uint64_t request = 0;
    int32_t slot = 0;
    uint64_t generation = 0;
    uint32_t end = 0;       // position behind its last row
    uint32_t last_row = 0;  // in the step
    bool samples = false;
    bool is_prompt = false;
  };

  struct InFlightStep {
    uint64_t step_id = 0;
    PendingStep timing;
    uint32_t decode_rows = 0;
    bool is_draft = false;  // all its rows
    std::vector<BatchSlice> slices;
    std::vector<std::pair<int32_t, uint64_t>> edited;  // slot, its generation after the edits
    // Checkpoint and the number of its save: those that the step saves, and those it restores.
    std::vector<std::pair<uint32_t, uint64_t>> saved;
    std::vector<std::pair<uint32_t, uint64_t>> restored;
    std::vector<KvName> stored, loaded, forgotten;  // blocks
    bool forgets_kept = false;                      // Scheduler::ForgetKept() came before it
    uint32_t loaded_tokens = 0;
  };

  Impl(const PipelineFacts& pipeline, SchedulerPolicy how)
      : facts(pipeline),
        policy(how),
        slots(facts, policy),
        costs(facts.n_stages),
        queue(policy.queue_max) {
    LimitContext();
    stats.stages.resize(facts.n_stages);
  }

  // A sequence has no more room than all slots have together.
  void LimitContext() {
    facts.n_ctx =
        static_cast<uint32_t>(std::min<uint64_t>(facts.n_ctx, SlotTable::CellsMaxOf(facts)));
  }

  // scheduler.cc
  absl::Status Check(const GenerationRequest& request) const;
  absl::StatusOr<uint64_t> Add(GenerationRequest request, int64_t now_us);
  void Cancel(uint64_t id, Leave leave, int64_t now_us);
  void ForgetKept();
  // The oldest step in flight has an outcome.
  InFlightStep TakeOldest();
  void TakeResult(const wire::Result& result, const InFlightStep& flight, int64_t now_us);
  void TakeToken(Request* request, const wire::SampledToken& token, int64_t now_us);
  // Reports that the prompt has been processed up to `done`, if that is news.
  void ReportProgress(Request* request, uint32_t done);
  void TakeTimings(const wire::Result& result, const InFlightStep& flight);
  void ObserveLoad(const wire::Result& result, const InFlightStep& flight);
  bool CanShift(const GenerationRequest& request) const;
  // Prompt and output fill the context, which cannot be shifted. The last token of such a sequence
  // has no place in the cache, and needs none.
  bool IsFull(const Request& request) const {
    return request.kv_length() >= facts.n_ctx && !CanShift(request.input);
  }
  // REQUIRES: its slot is full.
  void ShiftContext(Request* request);
  void End(uint64_t id, absl::Status status, FinishReason reason, Leave leave, int64_t now_us);
  void BeginPipeline(const PipelineFacts& pipeline);
  // False, and nothing has changed: the new pipeline cannot use the slots.
  bool Resume(const PipelineFacts& pipeline);
  void Restart(const PipelineFacts& pipeline, bool broke, int64_t now_us);
  int64_t RetryAfter() const;
  uint32_t in_flight_max() const;
  // Without those of drafts, which are beside the limit.
  uint32_t n_in_flight() const {
    return static_cast<uint32_t>(
        std::count_if(in_flight.begin(), in_flight.end(),
                      [](const InFlightStep& flight) { return !flight.is_draft; }));
  }

  // scheduler_step.cc
  struct Builder {
    wire::Step step;
    InFlightStep flight;
    uint32_t prompt_rows = 0;
    size_t open_bytes = 0;
    std::vector<int32_t> to_checkpoint;  // slots, once the step is formed

    uint32_t rows() const { return static_cast<uint32_t>(step.tokens_size()); }
    void AddRow(int32_t token, uint32_t position, int32_t slot) {
      step.add_tokens(token);
      step.add_positions(static_cast<int32_t>(position));
      step.add_slots(slot);
    }
    void AddEdit(wire::KvEdit edit, const SlotTable& slots);
    bool Has(uint64_t request) const {
      return std::any_of(flight.slices.begin(), flight.slices.end(),
                         [&](const BatchSlice& slice) { return slice.request == request; });
    }
  };
  std::optional<wire::Step> NextStep(int64_t now_us);
  void Admit(int64_t now_us);
  bool Place(Request* request, int64_t now_us);
  // The sequence that its slot is to hold. Valid until the request changes.
  SlotTable::Sequence SequenceOf(Request* request);
  // Whether the stages load the request's blocks sooner than they would compute them, as far as
  // both are known.
  bool LoadPays(const Request& request) const;
  // `known` tokens of its prompt were in some slot before it took its own.
  void PlanCheckpoints(Request* request, uint32_t known);
  void AddDecodes(Builder* step);
  void AddPrompts(Builder* step, int64_t now_us);
  void AddQuarantined(Builder* step);
  // Rows of the one request whose turn it is; SchedulerPolicy::exact.
  void AddExact(Builder* step);
  // The end of the rows that are fed from `begin` on.
  uint32_t ExactEnd(const Request& request, uint32_t begin) const;
  uint32_t AddRows(Builder* step, Request* request, uint32_t rows_max);
  uint32_t NDecoding() const;  // requests past their prompt, whose next step has one row
  uint32_t PromptRows(const Builder& step, const Request& next, int64_t now_us) const;
  Request* NextPrompt(const Builder& step);
  void MakeCells(std::vector<Request*>* rows);
  void Preempt(Request* request);
  // Whether another request is feeding more of the same beginning than a cache can give now.
  bool WaitsForPrefix(Request* request);
  // Of its slot's positions, those that are not drafts.
  uint32_t Fed(const Request& request) const { return slots.slot(request.slot).length(); }
  // How far its slot is to be filled: up to its last token, or to where its context is shifted.
  uint32_t Goal(const Request& request) const { return std::min(request.kv_length(), facts.n_ctx); }
  uint32_t Remaining(const Request& request) const { return Goal(request) - Fed(request); }
  wire::SequenceOpen OpenOf(const Request& request) const;

  // Its KV is lost: it is fed from its first token, and its context is shifted where it was before,
  // so that the next tokens depend on the same KV as they would have. It may lose its slot for want
  // of room.
  void FeedAgain(Request* request);

  // scheduler_drafts.cc
  // Rows of one draft, where a stage would be idle for want of other work.
  void AddDraft(Builder* step);
  // The number of steps in flight with which a sequence alone is fastest.
  uint32_t Window(const Request& request) const;
  bool MayDraft(const Request& request) const;
  wire::Speculation SpeculationOf(const Request& request) const {
    return request.input.speculation.value_or(policy.speculation);
  }
  // Whether its drafts are kept back where they do not pay.
  bool Adapts(const Request& request) const {
    return SpeculationOf(request) == wire::SPECULATION_AUTO;
  }
  struct Draft {
    int32_t token = 0;
    size_t drafter = 0;  // index of `drafters`
  };
  std::optional<Draft> NextDraft(Request* request);
  // Behind its sequence and `drafts`, if a drafter that serves it has one.
  std::optional<Draft> DraftFor(const Request& request, absl::Span<const int32_t> drafts);
  void ObserveRoundTrip(const wire::Result& result, const InFlightStep& flight, int64_t now_us);
  // Its sequence has gone on with its last token: drafts of that place are compared with it.
  void CheckDraft(Request* request, int64_t now_us);

  // scheduler_failure.cc
  void TakeFailure(const InFlightStep& flight, const absl::Status& status, int64_t now_us);
  void LoseSlot(int32_t slot, uint64_t generation, bool lost);
  void Blame(const InFlightStep& flight, const absl::Status& status, int64_t now_us);

  // Whether its slot has not started anew since the slice was formed.
  bool IsCurrent(const BatchSlice& slice) const {
    return slots.slot(slice.slot).generation == slice.generation;
  }
  Request* Find(uint64_t id) {
    const auto found = requests.find(id);
    return found == requests.end() ? nullptr : &found->second;
  }
  // The request whose rows the slice has, if it still owns the slot.
  Request* OwnerOf(const BatchSlice& slice) {
    return IsCurrent(slice) && slots.slot(slice.slot).owner == slice.request ? Find(slice.request)
                                                                             : nullptr;
  }

  PipelineFacts facts;
  const SchedulerPolicy policy;
  std::vector<std::unique_ptr<Drafter>> drafters;  // in the order in which they are asked
  SlotTable slots;
  StepCosts costs;
  DraftTrial draft_trial;
  std::map<uint64_t, Request> requests;  // at most queue_max + n_slots
  std::vector<uint64_t> running;         // have a slot; in the order of admission, at most n_slots
  // Have no slot. Those that have begun lost theirs, here or with another coordinator.
  FairQueue queue;
  // When a client's prompt was last fed; rises. Of clients with at least one request.
  std::map<std::string, uint64_t> chunk_turns;
  std::deque<InFlightStep> in_flight;  // at most in_flight_max(), and kDraftsInFlightMax
  std::vector<SchedulerEvent> events;  // until TakeEvents()
  uint64_t last_step_id = 0;
  uint64_t last_prompt_step_id = 0;  // that carried a chunk of a prompt
  uint32_t prompt_steps = 0;         // since the last one that carried decodes
  uint64_t last_failed_behind = 0;   // the last step in flight when one failed
  uint64_t last_request = 0;
  uint64_t last_tick = 0;  // source of all values that rise
  int64_t last_result_us = 0;
  uint32_t edit_failures = 0;   // steps with edits only that failed, one after the other
  double round_trip_us = 0;     // running mean of a row's, without its waits for other steps
  double accepted_share = 0.5;  // running mean, of drafts whose outcome is known
  double load_us = 0;           // running mean, of a token through all stages; 0: not known
  bool drafts_stopped = false;
  bool forgets_kept = false;  // not all stages have done so yet
  double request_us = 0;      // running mean of a request's time from its slot to its end
  SchedulerStats stats;
};

}  // namespace strata
