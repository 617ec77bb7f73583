// Inside of the scheduler: requests and where they stand. scheduler.cc takes what comes in,
// scheduler_step.cc forms steps, scheduler_failure.cc recovers what failed steps leave behind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/slot_table.h"
#include "coordinator/scheduler/step_costs.h"

namespace strata {

struct Scheduler::Impl {
  struct Request {
    uint64_t id = 0;
    GenerationRequest asked;
    std::vector<int32_t> text;  // prompt, generated
    std::vector<float> mu;      // mirostat's running value after each generated token
    uint32_t tokens_left = 0;
    // Behind the first `keep` tokens, position in the text minus position in the KV cache: rises
    // when its context is shifted, and is 0 again when it loses its place there.
    uint32_t offset = 0;
    uint32_t keep = 0;

    // While it has a slot.
    int32_t slot = -1;
    bool needs_open = false;  // the last stage does not have the text
    uint64_t admitted = 0;    // rises
    uint64_t ready = 0;       // rises; when its next token could first be fed
    // It was being written when stages or a coordinator were lost, and has had no token since.
    bool is_fed_again = false;
    // Prompt positions after which the KV is worth keeping, rising.
    std::vector<uint32_t> checkpoints;

    // It was in a step that failed, whose rows of it ended at `failed_at` in the text. `alone`: in
    // steps of its own, until it is past that, to see whose fault it is; `failures` of these.
    bool alone = false;
    uint32_t failures = 0;
    uint32_t failed_at = 0;
    uint32_t pipelines_broken = 0;  // that it ran in, since its last token

    GenerationUsage usage;
    int64_t added_us = 0;
    int64_t admitted_us = -1;
    int64_t first_us = -1;

    // What the KV cache would hold of it, had a context no end.
    uint32_t kv_length() const { return static_cast<uint32_t>(text.size()) - offset; }
    int32_t KvToken(uint32_t position) const {
      return text[position < keep ? position : position + offset];
    }
    uint32_t SequencePosition(uint32_t position) const {
      return position <= keep ? position : position + offset;
    }
    bool is_first_request() const { return offset == 0; }
  };

  // Rows of one request in a step.
  struct BatchSlice {
    uint64_t request = 0;
    int32_t slot = 0;
    uint64_t generation = 0;
    uint32_t end = 0;  // position behind its last row
    bool samples = false;
    bool is_prompt = false;
  };

  struct InFlightStep {
    uint64_t step_id = 0;
    StepUnderWay timing;
    uint32_t decode_rows = 0;
    std::vector<BatchSlice> parts;
    std::vector<std::pair<int32_t, uint64_t>> edited;  // slot, its generation after the edits
    // Checkpoint, which of its saves: those that the step makes, and goes back to.
    std::vector<std::pair<uint32_t, uint64_t>> saved;
    std::vector<std::pair<uint32_t, uint64_t>> restored;
  };

  // Requests of one client that wait, and whose turn it is: the client served longest ago.
  struct Client {
    std::deque<uint64_t> waiting;
    uint32_t n_requests = 0;  // waiting or running
    uint64_t admitted = 0;    // rise
    uint64_t chunk = 0;
  };

  Impl(const PipelineFacts& pipeline, SchedulerPolicy how)
      : facts(pipeline), policy(how), slots(facts, policy), costs(facts.n_stages) {
    LimitContext();
    stats.stages.resize(facts.n_stages);
  }

  // A sequence has no more room than all have together.
  void LimitContext() {
    facts.n_ctx = static_cast<uint32_t>(std::min<uint64_t>(facts.n_ctx, slots.cells_max()));
  }

  // scheduler.cc
  absl::Status Check(const GenerationRequest& request) const;
  absl::StatusOr<uint64_t> Add(GenerationRequest request, int64_t now_us);
  void Cancel(uint64_t id, Leave leave, int64_t now_us);
  void TakeResult(const wire::Result& result, const InFlightStep& flight, int64_t now_us);
  void TakeToken(Request* request, const wire::SampledToken& token, int64_t now_us);
  void TakeTimings(const wire::Result& result, const InFlightStep& flight);
  bool CanShift(const GenerationRequest& request) const;
  // Prompt and answer fill the context, which cannot be shifted. The last token of such a text has
  // no place in the cache, and needs none.
  bool IsFull(const Request& request) const {
    return request.kv_length() >= facts.n_ctx && !CanShift(request.asked);
  }
  // Its slot is full.
  void ShiftContext(Request* request);
  void End(uint64_t id, absl::Status status, FinishReason reason, Leave leave, int64_t now_us);
  void BeginPipeline(const PipelineFacts& pipeline);
  // False, and nothing has changed: the slots are no use to it.
  bool Resume(const PipelineFacts& pipeline);
  void Restart(const PipelineFacts& pipeline, bool broke, int64_t now_us);
  int64_t RetryAfter() const;
  uint32_t in_flight_max() const;

  // scheduler_step.cc
  struct Builder;
  std::optional<wire::Step> NextStep(int64_t now_us);
  void Admit(int64_t now_us);
  bool Place(Request* request, int64_t now_us);
  // `known` tokens of its prompt were somewhere in a slot before it took its own.
  void PlanCheckpoints(Request* request, uint32_t known);
  void AddDecodes(Builder* step);
  void AddPrompts(Builder* step, int64_t now_us);
  void AddAlone(Builder* step);
  // Rows of one request, whose turn it is; SchedulerPolicy::exact.
  void AddExact(Builder* step);
  // Where the rows end that are fed from `begin` on.
  uint32_t ExactEnd(const Request& request, uint32_t begin) const;
  uint32_t AddRows(Builder* step, Request* request, uint32_t rows_max);
  uint32_t NDecoding() const;  // texts whose next row is a token of their own
  uint32_t PromptRows(const Builder& step, const Request& next, int64_t now_us) const;
  Request* NextPrompt(const Builder& step);
  void MakeCells(std::vector<Request*>* rows);
  void Preempt(Request* request);
  // Whether more of its beginning than can be had now is being fed for another.
  bool WaitsForPrefix(const Request& request) const;
  // How far its slot is to be filled: up to its last token, or to where its context is shifted.
  uint32_t Goal(const Request& request) const { return std::min(request.kv_length(), facts.n_ctx); }
  uint32_t Remaining(const Request& request) const {
    return Goal(request) - static_cast<uint32_t>(slots.slot(request.slot).tokens.size());
  }
  wire::SequenceOpen OpenOf(const Request& request) const;

  // Nothing of it stands in the caches: it is fed from its first token, and its context is shifted
  // where it was, so that what is written next depends on what it would have. It may lose its slot
  // for want of room.
  void FeedAgain(Request* request);

  // scheduler_failure.cc
  void TakeFailure(const InFlightStep& flight, const absl::Status& status, int64_t now_us);
  void LoseSlot(int32_t slot, uint64_t generation, bool lost);
  void Blame(const InFlightStep& flight, const absl::Status& status, int64_t now_us);

  // Whether a part still speaks of what stands in its slot.
  bool IsCurrent(const BatchSlice& part) const {
    return slots.slot(part.slot).generation == part.generation;
  }
  Request* Find(uint64_t id) {
    const auto found = requests.find(id);
    return found == requests.end() ? nullptr : &found->second;
  }
  // The request that a part fed rows of, if it is still so.
  Request* OwnerOf(const BatchSlice& part) {
    return IsCurrent(part) && slots.slot(part.slot).owner == part.request ? Find(part.request)
                                                                          : nullptr;
  }

  PipelineFacts facts;
  const SchedulerPolicy policy;
  SlotTable slots;
  StepCosts costs;
  std::map<uint64_t, Request> requests;  // at most queue_max + n_slots
  std::vector<uint64_t> running;         // have a slot; in the order of admission, at most n_slots
  // Lost their slot, here or with another coordinator, and are let in before all others; those of
  // another coordinator at most until there are queue_max requests without a slot.
  std::deque<uint64_t> resumed;
  std::map<std::string, Client> clients;  // with at least one request
  uint32_t n_waiting = 0;                 // in clients' queues
  std::deque<InFlightStep> in_flight;     // at most in_flight_max()
  std::vector<SchedulerEvent> events;     // until TakeEvents()
  uint64_t last_step_id = 0;
  uint64_t last_prompt_step_id = 0;  // that carried a chunk of a prompt
  uint32_t prompt_steps = 0;         // since the last one that carried decodes
  uint64_t last_failed_behind = 0;   // the last step that was under way when one failed
  uint64_t last_request = 0;
  uint64_t last_tick = 0;  // of everything that rises
  int64_t last_result_us = 0;
  uint32_t edit_failures = 0;  // steps with edits only that failed, one after the other
  double request_us = 0;       // running mean of what a request takes from its slot to its end
  SchedulerStats stats;
};

}  // namespace strata
