// Many texts at a time over one pipeline: the scheduler's thread-safe front. Feeds the next step
// from the link's own callback, and tells each request's listener what becomes of it.
//
//   Add ─▶ Scheduler ─▶ Pipeline::Submit … Pipeline::Listener::OnResult ─▶ Scheduler ─▶
//   GenerationListener
//
//   GenerationEngine server({});
//   auto pipeline = Pipeline::Build(options, &server, progress);
//   server.Start(pipeline->get());
//   auto id = server.Add(request, listener);
//   …
//   server.Stop(absl::OkStatus());  // before the pipeline goes; the server outlives the pipeline
//
// Texts outlive their pipeline where another one takes its place:
//
//   server.Pause();  // in OnBroken()
//   server.Detach();   // then the broken pipeline may go
//   server.Restart(next.get());
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/generation/pipeline.h"
#include "coordinator/request/generation_request.h"
#include "coordinator/scheduler/scheduler_types.h"
#include "transport/base/clock.h"

namespace strata {

// Hears of one request: calls come one at a time and in order, on any thread, without a lock held,
// possibly before Add() has returned. They must not block, nor destroy or Stop() the server; they
// may Add(), Finish() and Cancel().
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  // The next token of the text. The token that ends a generation is not shown.
  virtual void OnToken(const wire::SampledToken& token) = 0;
  // Exactly once, and last. Not OK: what went wrong; `reason` means nothing then.
  virtual void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) = 0;
};

struct GenerationEngineOptions {
  SchedulerPolicy policy;
  const Clock* clock = nullptr;  // outlives the server; null: the machine's
};

class GenerationEngine final : public Pipeline::Listener {
 public:
  explicit GenerationEngine(GenerationEngineOptions options);
  ~GenerationEngine() override;  // as Stop(kCancelled)

  // Once, with the pipeline that was built with this as its listener. kInvalidArgument: its stages
  // do not say what they can do, or not alike; else what it broke with meanwhile.
  absl::Status Start(Pipeline* pipeline);

  // The pipeline broke and takes no more steps: texts wait, new ones too, and may be cancelled. Any
  // thread, never blocks.
  void Pause();
  // It takes no more steps, and waits until nothing of it is being called any more: it may go. Not
  // from a listener.
  void Detach();
  // No further step is formed, and waits until those under way are done, `limit` at most, the
  // pipeline breaks, or `wanted` says no, which is asked many times a second. True: none is under
  // way. Until Restart() or Resume(); not from a listener.
  bool Quiesce(std::chrono::milliseconds limit, absl::FunctionRef<bool()> wanted);
  // Steps are formed again, as if it had not come to rest.
  void Resume();
  // After Detach(), with a pipeline of the same model: every text goes on, but those that have been
  // given up (Scheduler::Restart). True: none is fed again. Errors as of Start(); kUnavailable:
  // Stop() came first. With an error texts go on waiting.
  absl::StatusOr<bool> Restart(Pipeline* pipeline);
  // Ends every text with `status`, with which new ones are refused until Restart().
  void Fail(const absl::Status& status);

  // Takes the request; `listener` is kept until its OnEnd. Any thread, never blocks. Returns the
  // number by which it is cancelled. kInvalidArgument: the request cannot be served by this
  // pipeline (prompt empty, too long, or with ids that are no tokens); kResourceExhausted: too many
  // wait (RetryAfterMs, IsOfOneClient); kUnavailable: draining or stopped; else the status that the
  // pipeline broke with.
  absl::StatusOr<uint64_t> Add(GenerationRequest request,
                               std::shared_ptr<GenerationListener> listener);

  // Nobody wants the text any more: its KV is dropped in every stage with the next step. OnEnd
  // follows (kCancelled). Nothing happens when it has ended.
  void Cancel(uint64_t id);
  // The text is complete, say at a stop string: as Cancel(), but its KV is kept for a prompt that
  // goes on from it, while nobody needs the room. OnEnd says kEndOfGeneration.
  void Finish(uint64_t id);

  // No new requests; those that are there go on. `idle()` once all have ended.
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
  const std::unique_ptr<State> state_;
};

}  // namespace strata
