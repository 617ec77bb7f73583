// Many generations at a time over one pipeline: a thread-safe engine around the scheduler. Feeds
// the next step from the link's own callback, and reports each request's tokens and end to its
// listener.
//
//   Add ─▶ Scheduler ─▶ Pipeline::Submit … Pipeline::Listener::OnResult ─▶ Scheduler ─▶
//   GenerationListener
//
//   GenerationEngine engine({});
//   auto pipeline = Pipeline::Build(options, &engine, progress);
//   engine.Start(pipeline->get());
//   auto id = engine.Add(request, listener);
//   …
//   engine.Stop(absl::OkStatus());  // before the pipeline goes; the engine outlives the pipeline
//
// Requests outlive their pipeline where another one takes its place:
//
//   engine.Pause();   // in OnBroken()
//   engine.Detach();  // then the broken pipeline may go
//   engine.Restart(next.get());
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/generation/pipeline.h"
#include "coordinator/request/generation_request.h"
#include "coordinator/scheduler/drafter.h"
#include "coordinator/scheduler/scheduler_types.h"
#include "transport/base/clock.h"

namespace strata {

// Receives the events of one request: calls come one at a time and in order, on any thread, without
// a lock held, possibly before Add() has returned. They must not block, nor destroy or Stop() the
// engine; they may Add(), Finish() and Cancel().
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  // First, if the generation starts at all: the tokens of its prompt. Not from the engine, whose
  // caller has them, but from GenerationCall (generation_call.h).
  virtual void OnStarted(const std::vector<int32_t>& /*prompt*/) {}
  // Where the request asks for it, and before the first token.
  virtual void OnProgress(const PromptProgress& /*progress*/) {}
  // The next token of the output. The token that ends a generation is not shown.
  virtual void OnToken(const wire::SampledToken& token) = 0;
  // Exactly once, and last. Not OK: the error; `reason` means nothing then.
  virtual void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) = 0;
};

// Makes the drafter of a draft model; `on_drafted` as of ModelDrafter::Options.
using MakeModelDrafter = std::function<std::unique_ptr<Drafter>(std::function<void()> on_drafted)>;

struct GenerationEngineOptions {
  SchedulerPolicy policy;
  const Clock* clock = nullptr;    // outlives the engine; null: the machine's
  MakeModelDrafter model_drafter;  // null: there is no draft model
};

class GenerationEngine final : public Pipeline::Listener {
 public:
  explicit GenerationEngine(GenerationEngineOptions options);
  ~GenerationEngine() override;  // as Stop(kCancelled)

  // Once, with the pipeline that was built with this as its listener. kInvalidArgument: its stages
  // do not report their limits, or disagree on them; else the status that it broke with meanwhile.
  absl::Status Start(Pipeline* pipeline);

  // The pipeline broke and takes no more steps: requests wait, new ones too, and may be cancelled.
  // Any thread, never blocks.
  void Pause();
  // Gives the pipeline no more steps, and waits until no call to it is in progress: it may go. Not
  // from a listener.
  void Detach();
  // Forms no further step until Restart() or Resume(), and waits until the steps in flight are
  // done, the pipeline breaks, `wanted` returns false, which is called many times a second, or
  // `limit` is over. True: no step is in flight. Not from a listener.
  bool Quiesce(std::chrono::milliseconds limit, absl::FunctionRef<bool()> wanted);
  // Forms steps again after Quiesce().
  void Resume();
  // As Scheduler::AllowDrafts().
  void AllowDrafts(bool allowed);
  // As Scheduler::ForgetKept(); where there is no pipeline, once there is one. Waits for the
  // stages, but only so long. Not from a listener.
  void ForgetKept(std::chrono::milliseconds limit);
  // After Detach(), with a pipeline of the same model: every request goes on, but those that are
  // given up (Scheduler::Restart). True: none is fed again. Errors as of Start(); kUnavailable:
  // Stop() came first. After an error the requests still wait.
  absl::StatusOr<bool> Restart(Pipeline* pipeline);
  // Ends every request with `status`; refuses new ones with it until Restart().
  void Fail(const absl::Status& status);

  // Takes the request; `listener` is kept until its OnEnd. Any thread, never blocks. Returns the
  // number by which it is cancelled. kInvalidArgument: the request cannot be served by this
  // pipeline (prompt empty, too long, or with ids that are no tokens); kResourceExhausted: the
  // queue is full (RetryAfterMs, IsClientLimit); kUnavailable: draining or stopped; else the status
  // that the pipeline broke with.
  absl::StatusOr<uint64_t> Add(GenerationRequest request,
                               std::shared_ptr<GenerationListener> listener);

  // The output is no longer wanted: its KV is dropped in every stage with the next step. OnEnd
  // follows (kCancelled). Does nothing when the request has ended.
  void Cancel(uint64_t id);
  // The output is complete, say at a stop string: as Cancel(), but its KV is kept for a prompt that
  // goes on from it, as long as no request needs the room. OnEnd says kEndOfGeneration.
  void Finish(uint64_t id);

  // Refuses new requests; the present ones go on. `idle()` once all have ended.
  void Drain();
  bool idle() const;

  // Ends every request with `status` (OK: kCancelled), and feeds the pipeline no more. No listener
  // is called after it returns, and the pipeline may go. Blocks for as long as a listener does.
  void Stop(const absl::Status& status);

  SchedulerStats Stats() const;

  // Pipeline::Listener.
  void OnResult(wire::Result result) override;
  void OnStepError(wire::StepError error) override;
  void OnWritable() override;
  void OnBroken(absl::Status status) override;

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with what drafters wait for
};

}  // namespace strata
