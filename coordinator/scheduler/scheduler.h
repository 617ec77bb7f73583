// Continuous batching: decides which rows of which sequences go into the next step of a pipeline. A
// state machine without I/O, threads or a clock, so that a simulation can run it; GenerationEngine
// feeds it. Times are microseconds of any clock that never goes back.
//
// A sequence is its prompt, its settings and its tokens so far. Its part of the KV caches is only a
// saving: after a failed step, or in another pipeline (Restart), the sequence is fed again.
//
//   while (auto step = scheduler.NextStep(now_us)) pipeline->Submit(*step);
//   scheduler.OnResult(result, now_us);           // in the order of the steps
//   for (auto& event : scheduler.TakeEvents()) …
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/request/generation_request.h"
#include "coordinator/scheduler/drafter.h"
#include "coordinator/scheduler/scheduler_types.h"
#include "proto/frame.pb.h"

namespace strata {

struct SchedulerEvent {
  struct End {
    absl::Status status;
    FinishReason reason = FinishReason::kLength;
    GenerationUsage usage;
  };
  uint64_t request = 0;
  wire::SampledToken token;  // if the others are empty
  std::optional<PromptProgress> progress;
  std::optional<End> end;
};

// Not thread-safe.
class Scheduler {
 public:
  // `drafter`: null: an NgramDrafter. `model_drafter` is asked where that one has no draft; null:
  // there is none.
  Scheduler(const PipelineFacts& facts, SchedulerPolicy policy,
            std::unique_ptr<Drafter> drafter = nullptr,
            std::unique_ptr<Drafter> model_drafter = nullptr);
  ~Scheduler();

  // Puts a request into the queue and returns its number. kInvalidArgument: this pipeline cannot
  // serve it; kResourceExhausted: the queue is full, or this client's part of it (RetryAfterMs,
  // IsClientLimit).
  absl::StatusOr<uint64_t> Add(GenerationRequest request, int64_t now_us);

  // Ends a request, waiting or running, if it has not ended. kDrop forgets its KV with the next
  // step; kKeep leaves it for prompts that go on from it.
  enum class Leave { kDrop, kKeep };
  void Cancel(uint64_t request, Leave leave, int64_t now_us);

  // The next step to submit; nullopt: nothing to do until something happens. Steps are numbered
  // from 1 as Pipeline::Submit() numbers them; each must be submitted, in this order.
  std::optional<wire::Step> NextStep(int64_t now_us);

  // The outcomes of the steps, in their order. A result that is out of order or malformed counts as
  // a failure of its step.
  void OnResult(const wire::Result& result, int64_t now_us);
  void OnStepError(const wire::StepError& error, int64_t now_us);
  // The step was not sent, and no stage will see it.
  void OnNotSent(uint64_t step_id, const absl::Status& why, int64_t now_us);

  // Continues on a new pipeline, with nothing in flight. Where its caches hold what the old one's
  // held, and the old one had nothing in flight, all requests go on; else every running request is
  // fed again and goes on from its last token. `broke`: the old pipeline was lost, not given up for
  // this one. Requests that do not fit into the new one end with kResourceExhausted, those over
  // SchedulerPolicy::pipelines_broken_max with kAborted. True: no request is fed again.
  bool Restart(const PipelineFacts& facts, SlotContents contents, bool broke, int64_t now_us);

  // False: no drafts are formed from now on, say because the caches are being copied: what a wrong
  // one leaves there until the next step would be copied again.
  void AllowDrafts(bool allowed);

  // Has the stages forget what they keep of sequences that no request uses, in slots and on disks;
  // nor do drafts come from them.
  void ForgetKept();

  // Ends every request with `status`.
  void EndAll(const absl::Status& status, int64_t now_us);

  // The events since the last call, in order.
  std::vector<SchedulerEvent> TakeEvents();

  bool idle() const;  // no request waits or runs
  SchedulerStats Stats() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace strata
