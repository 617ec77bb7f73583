// One text from its request to its end: puts what the text server says in order behind the word
// that it has started, and remembers that nobody wants it any more while it is not there yet.
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

// Hears of one text; calls as GenerationListener's. OnStarted() comes first, if the text starts at
// all.
class GenerationSink : public GenerationListener {
 public:
  virtual void OnStarted(const std::vector<int32_t>& prompt) = 0;
};

// Ends a text before its time. Thread-safe, never blocks; at any time, and the first word counts.
class GenerationHandle {
 public:
  virtual ~GenerationHandle() = default;
  // Nobody wants the text any more; OnEnd() follows.
  virtual void Cancel() = 0;
  // The text is complete, say at a stop string; OnEnd() follows.
  virtual void Finish() = 0;
};

// Thread-safe.
class GenerationCall final : public GenerationListener, public GenerationHandle {
 public:
  explicit GenerationCall(std::shared_ptr<GenerationSink> sink) : sink_(std::move(sink)) {}

  void Cancel() override { Stop(Wanted::kCancelled); }
  void Finish() override { Stop(Wanted::kFinished); }

  // Until it starts or is refused: calls `fn` when nobody wants it any more, at once if that is
  // so already. The last one counts.
  void OnUnwanted(absl::AnyInvocable<void() &&> fn);
  bool wanted() const;

  // The server took it under this number. Once.
  void Start(std::vector<int32_t> prompt, const std::shared_ptr<GenerationEngine>& server,
             uint64_t id);
  // It does not start. Instead of Start().
  void Refuse(absl::Status status);

  void OnToken(const wire::SampledToken& token) override;
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override;

 private:
  enum class Wanted { kYes, kCancelled, kFinished };
  using Event = absl::AnyInvocable<void(GenerationSink*) &&>;

  void Stop(Wanted wanted);
  void Tell(Event event);
  void TellWaiting();

  const std::shared_ptr<GenerationSink> sink_;  // shared with who asked

  mutable absl::Mutex mu_;
  // At most what the text has tokens. Told by one thread at a time, without the lock.
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);
  bool telling_ ABSL_GUARDED_BY(mu_) = true;  // nothing is told before the start
  Wanted wanted_ ABSL_GUARDED_BY(mu_) = Wanted::kYes;
  bool decided_ ABSL_GUARDED_BY(mu_) = false;  // it has started, or was refused
  absl::AnyInvocable<void() &&> on_unwanted_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  // From Start() to OnEnd(); shared with whoever runs it.
  std::shared_ptr<GenerationEngine> server_ ABSL_GUARDED_BY(mu_);
  uint64_t id_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace strata
