#include "node/gateway/generate_reactor.h"

#include <utility>

#include "node/gateway/generation_proto.h"

namespace strata {

// The stream's listener; the stream stays until OnEnd().
class GenerateReactor::Sink final : public GenerationListener {
 public:
  explicit Sink(GenerateReactor* stream) : stream_(stream) {}

  void OnStarted(const std::vector<int32_t>& prompt) override {
    wire::GenerateEvent event = StartedToWire(prompt);
    event.mutable_started()->set_text(stream_->number_);
    stream_->Put(std::move(event));
  }
  void OnProgress(const PromptProgress& progress) override {
    stream_->Put(ProgressToWire(progress));
  }
  void OnToken(const wire::SampledToken& token) override {
    wire::GenerateEvent event;
    *event.mutable_token() = token;
    stream_->Put(std::move(event));
  }
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override {
    if (status.ok()) stream_->Put(EndedToWire(reason, usage));
    stream_->End(status);
  }

 private:
  GenerateReactor* const stream_;
};

GenerateReactor::GenerateReactor(std::shared_ptr<ActiveGenerations> active)
    : active_(std::move(active)), number_(active_->Open()), sink_(std::make_shared<Sink>(this)) {}

GenerateReactor::~GenerateReactor() = default;

void GenerateReactor::SetControl(std::shared_ptr<GenerationHandle> control) {
  control_ = control;
  active_->SetControl(number_, std::move(control));
}

void GenerateReactor::Put(wire::GenerateEvent event) {
  absl::MutexLock lock(mu_);
  events_.push_back(std::move(event));
  WriteNext();
}

void GenerateReactor::End(const absl::Status& status) {
  active_->Close(number_);
  {
    absl::MutexLock lock(mu_);
    ended_ = true;
    status_ = status;
    WriteNext();
  }
  Unref();
}

void GenerateReactor::WriteNext() {
  if (writing_ || finished_) return;
  if (!gone_ && !events_.empty()) {
    event_ = std::move(events_.front());
    events_.pop_front();
    writing_ = true;
    StartWrite(&event_);
  } else if (ended_) {
    finished_ = true;
    Finish(RequestStatusToGrpc(gone_ ? absl::CancelledError("the caller has gone") : status_));
  } else {
    events_.clear();  // they are not read
  }
}

void GenerateReactor::OnWriteDone(bool ok) {
  absl::MutexLock lock(mu_);
  writing_ = false;
  if (!ok) gone_ = true;
  WriteNext();
}

void GenerateReactor::OnCancel() {
  {
    absl::MutexLock lock(mu_);
    gone_ = true;
  }
  control_->Cancel();  // the end of the request ends the call
}

void GenerateReactor::OnDone() { Unref(); }

void GenerateReactor::Unref() {
  bool last;
  {
    absl::MutexLock lock(mu_);
    last = --refs_ == 0;
  }
  if (last) delete this;
}

}  // namespace strata
