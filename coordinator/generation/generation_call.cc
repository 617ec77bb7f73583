#include "coordinator/generation/generation_call.h"

#include <utility>

namespace strata {

void GenerationCall::Stop(StopReason reason) {
  std::shared_ptr<GenerationEngine> engine;
  absl::AnyInvocable<void() &&> on_unwanted;
  uint64_t id = 0;
  {
    absl::MutexLock lock(mu_);
    if (stop_reason_ != StopReason::kNone) return;
    stop_reason_ = reason;
    engine = engine_;
    id = id_;
    on_unwanted = std::exchange(on_unwanted_, nullptr);
  }
  if (on_unwanted) std::move(on_unwanted)();
  if (engine == nullptr) return;  // Start() sees it, or it has ended
  if (reason == StopReason::kFinished) {
    engine->Finish(id);
  } else {
    engine->Cancel(id);
  }
}

void GenerationCall::OnUnwanted(absl::AnyInvocable<void() &&> fn) {
  {
    absl::MutexLock lock(mu_);
    if (decided_) return;
    if (stop_reason_ == StopReason::kNone) {
      on_unwanted_ = std::move(fn);
      return;
    }
  }
  std::move(fn)();
}

bool GenerationCall::wanted() const {
  absl::MutexLock lock(mu_);
  return stop_reason_ == StopReason::kNone;
}

void GenerationCall::Hold(std::shared_ptr<void> held) {
  absl::MutexLock lock(mu_);
  held_ = std::move(held);
}

void GenerationCall::Start(std::vector<int32_t> prompt,
                           const std::shared_ptr<GenerationEngine>& engine, uint64_t id) {
  StopReason reason;
  absl::AnyInvocable<void() &&> unneeded;  // destroyed without the lock
  {
    absl::MutexLock lock(mu_);
    events_.push_front(
        [prompt = std::move(prompt)](GenerationListener* sink) { sink->OnStarted(prompt); });
    if (!ended_) engine_ = engine;
    id_ = id;
    reason = stop_reason_;
    decided_ = true;
    unneeded = std::exchange(on_unwanted_, nullptr);
  }
  if (reason == StopReason::kCancelled) engine->Cancel(id);
  if (reason == StopReason::kFinished) engine->Finish(id);
  EmitPending();
}

void GenerationCall::Refuse(absl::Status status) {
  absl::AnyInvocable<void() &&> unneeded;  // destroyed without the lock
  std::shared_ptr<void> held;              // the same
  {
    absl::MutexLock lock(mu_);
    decided_ = true;
    unneeded = std::exchange(on_unwanted_, nullptr);
    held = std::exchange(held_, nullptr);
    events_.push_back([status = std::move(status)](GenerationListener* sink) {
      sink->OnEnd(status, FinishReason::kCancelled, {});
    });
  }
  EmitPending();
}

void GenerationCall::OnProgress(const PromptProgress& progress) {
  Emit([progress](GenerationListener* sink) { sink->OnProgress(progress); });
}

void GenerationCall::OnToken(const wire::SampledToken& token) {
  Emit([token](GenerationListener* sink) { sink->OnToken(token); });
}

void GenerationCall::OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) {
  std::shared_ptr<void> held;  // destroyed without the lock
  {
    absl::MutexLock lock(mu_);
    ended_ = true;
    engine_ = nullptr;
    held = std::exchange(held_, nullptr);
  }
  Emit([status = std::move(status), reason, usage](GenerationListener* sink) {
    sink->OnEnd(status, reason, usage);
  });
}

void GenerationCall::Emit(Event event) {
  {
    absl::MutexLock lock(mu_);
    events_.push_back(std::move(event));
    if (emitting_) return;
    emitting_ = true;
  }
  EmitPending();
}

void GenerationCall::EmitPending() {
  while (true) {
    Event event;
    {
      absl::MutexLock lock(mu_);
      if (events_.empty()) {
        emitting_ = false;
        return;
      }
      event = std::move(events_.front());
      events_.pop_front();
    }
    std::move(event)(sink_.get());
  }
}

}  // namespace strata
