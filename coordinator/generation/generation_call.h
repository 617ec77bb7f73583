// One generation from its request to its end: delivers the engine's events in order, behind the
// event that it has started, and remembers a cancel that comes before the start.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/generation/generation_engine.h"

namespace strata {

// Ends a generation early. Thread-safe, never blocks; may be called at any time, and the first call
// counts.
class GenerationHandle {
 public:
  virtual ~GenerationHandle() = default;
  // The output is no longer wanted; OnEnd() follows.
  virtual void Cancel() = 0;
  // The output is complete, say at a stop string; OnEnd() follows.
  virtual void Finish() = 0;
};

// Thread-safe.
class GenerationCall final : public GenerationListener, public GenerationHandle {
 public:
  explicit GenerationCall(std::shared_ptr<GenerationListener> sink) : sink_(std::move(sink)) {}

  void Cancel() override { Stop(StopReason::kCancelled); }
  void Finish() override { Stop(StopReason::kFinished); }

  // Until Start() or Refuse(): calls `fn` on Cancel() or Finish(), at once if that has happened
  // already. The last `fn` counts.
  void OnUnwanted(absl::AnyInvocable<void() &&> fn);
  bool wanted() const;
  // Keeps `held` until the generation has ended or was refused. REQUIRES: before Start() and
  // Refuse().
  void Hold(std::shared_ptr<void> held);

  // `engine` took the request under the number `id`. Called once.
  void Start(std::vector<int32_t> prompt, const std::shared_ptr<GenerationEngine>& engine,
             uint64_t id);
  // The generation does not start. Called instead of Start().
  void Refuse(absl::Status status);

  void OnProgress(const PromptProgress& progress) override;
  void OnToken(const wire::SampledToken& token) override;
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override;

 private:
  enum class StopReason { kNone, kCancelled, kFinished };
  using Event = absl::AnyInvocable<void(GenerationListener*) &&>;

  void Stop(StopReason reason);
  void Emit(Event event);
  void EmitPending();

  const std::shared_ptr<GenerationListener> sink_;  // shared with the caller

  mutable absl::Mutex mu_;
  // At most one for each token and each chunk of the prompt, one for the start and one for the end.
  // Emitted by one thread at a time, without the lock.
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);
  bool emitting_ ABSL_GUARDED_BY(mu_) = true;  // nothing is emitted before the start
  StopReason stop_reason_ ABSL_GUARDED_BY(mu_) = StopReason::kNone;
  bool decided_ ABSL_GUARDED_BY(mu_) = false;  // it has started, or was refused
  absl::AnyInvocable<void() &&> on_unwanted_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<void> held_ ABSL_GUARDED_BY(mu_);  // not shared
  // From Start() to OnEnd(); shared with its owner.
  std::shared_ptr<GenerationEngine> engine_ ABSL_GUARDED_BY(mu_);
  uint64_t id_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace strata
