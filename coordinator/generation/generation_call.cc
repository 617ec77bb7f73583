#include "coordinator/generation/generation_call.h"

#include <utility>

namespace strata {

void GenerationCall::Stop(Wanted wanted) {
  std::shared_ptr<GenerationEngine> server;
  absl::AnyInvocable<void() &&> on_unwanted;
  uint64_t id = 0;
  {
    absl::MutexLock lock(mu_);
    if (wanted_ != Wanted::kYes) return;
    wanted_ = wanted;
    server = server_;
    id = id_;
    on_unwanted = std::exchange(on_unwanted_, nullptr);
  }
  if (on_unwanted) std::move(on_unwanted)();
  if (server == nullptr) return;  // Start() sees it, or it has ended
  if (wanted == Wanted::kFinished) {
    server->Finish(id);
  } else {
    server->Cancel(id);
  }
}

void GenerationCall::OnUnwanted(absl::AnyInvocable<void() &&> fn) {
  {
    absl::MutexLock lock(mu_);
    if (decided_) return;
    if (wanted_ == Wanted::kYes) {
      on_unwanted_ = std::move(fn);
      return;
    }
  }
  std::move(fn)();
}

bool GenerationCall::wanted() const {
  absl::MutexLock lock(mu_);
  return wanted_ == Wanted::kYes;
}

void GenerationCall::Start(std::vector<int32_t> prompt,
                           const std::shared_ptr<GenerationEngine>& server, uint64_t id) {
  Wanted wanted;
  absl::AnyInvocable<void() &&> unneeded;  // destroyed without the lock
  {
    absl::MutexLock lock(mu_);
    events_.push_front(
        [prompt = std::move(prompt)](GenerationSink* sink) { sink->OnStarted(prompt); });
    if (!ended_) server_ = server;
    id_ = id;
    wanted = wanted_;
    decided_ = true;
    unneeded = std::exchange(on_unwanted_, nullptr);
  }
  if (wanted == Wanted::kCancelled) server->Cancel(id);
  if (wanted == Wanted::kFinished) server->Finish(id);
  TellWaiting();
}

void GenerationCall::Refuse(absl::Status status) {
  absl::AnyInvocable<void() &&> unneeded;  // destroyed without the lock
  {
    absl::MutexLock lock(mu_);
    decided_ = true;
    unneeded = std::exchange(on_unwanted_, nullptr);
    events_.push_back([status = std::move(status)](GenerationSink* sink) {
      sink->OnEnd(status, FinishReason::kCancelled, {});
    });
  }
  TellWaiting();
}

void GenerationCall::OnToken(const wire::SampledToken& token) {
  Tell([token](GenerationSink* sink) { sink->OnToken(token); });
}

void GenerationCall::OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) {
  {
    absl::MutexLock lock(mu_);
    ended_ = true;
    server_ = nullptr;
  }
  Tell([status = std::move(status), reason, usage](GenerationSink* sink) {
    sink->OnEnd(status, reason, usage);
  });
}

void GenerationCall::Tell(Event event) {
  {
    absl::MutexLock lock(mu_);
    events_.push_back(std::move(event));
    if (telling_) return;
    telling_ = true;
  }
  TellWaiting();
}

void GenerationCall::TellWaiting() {
  while (true) {
    Event event;
    {
      absl::MutexLock lock(mu_);
      if (events_.empty()) {
        telling_ = false;
        return;
      }
      event = std::move(events_.front());
      events_.pop_front();
    }
    std::move(event)(sink_.get());
  }
}

}  // namespace strata
