#include "node/text_stream.h"

#include <utility>

#include "transport/grpc_status.h"

namespace strata {
namespace {

void ToWire(const std::vector<StageTotal>& totals,
            google::protobuf::RepeatedPtrField<wire::TextStageTotal>* out) {
  for (const StageTotal& total : totals) {
    wire::TextStageTotal* wire = out->Add();
    wire->set_queue_us(total.queue_us);
    wire->set_compute_us(total.compute_us);
    wire->set_sample_us(total.sample_us);
    wire->set_steps(total.steps);
  }
}

wire::TextEnded::Reason ReasonOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return wire::TextEnded::LENGTH;
    case FinishReason::kEndOfGeneration:
      return wire::TextEnded::STOP;
    case FinishReason::kCancelled:
      return wire::TextEnded::CANCELLED;
  }
  return wire::TextEnded::UNKNOWN;
}

}  // namespace

// The stream's ear; the stream stays until OnEnd().
class TextStream::Sink final : public TextSink {
 public:
  explicit Sink(TextStream* stream) : stream_(stream) {}

  void OnStarted(const std::vector<int32_t>& prompt) override {
    wire::GenerateTextEvent event;
    event.mutable_started()->mutable_prompt()->Add(prompt.begin(), prompt.end());
    stream_->Put(std::move(event));
  }
  void OnToken(const wire::SampledToken& token) override {
    wire::GenerateTextEvent event;
    *event.mutable_token() = token;
    stream_->Put(std::move(event));
  }
  void OnEnd(absl::Status status, FinishReason reason, const TextUsage& usage) override {
    if (status.ok()) {
      wire::GenerateTextEvent event;
      wire::TextEnded* ended = event.mutable_ended();
      ended->set_reason(ReasonOf(reason));
      ended->set_cached_tokens(usage.cached_tokens);
      ended->set_queued_us(usage.queued_us);
      ended->set_prompt_us(usage.prompt_us);
      ended->set_decode_us(usage.decode_us);
      ToWire(usage.prompt_stages, ended->mutable_prompt_stages());
      ToWire(usage.decode_stages, ended->mutable_decode_stages());
      stream_->Put(std::move(event));
    }
    stream_->End(status);
  }

 private:
  TextStream* const stream_;
};

// Reads what another node writes.
class TextStream::Reader final : public grpc::ClientReadReactor<wire::GenerateTextEvent> {
 public:
  Reader(TextStream* to, std::unique_ptr<wire::Coordinator::Stub> stub,
         std::shared_ptr<grpc::ClientContext> context, wire::GenerateTextRequest request)
      : to_(to),
        stub_(std::move(stub)),
        context_(std::move(context)),
        request_(std::move(request)) {}

  void Start() {
    stub_->async()->GenerateText(context_.get(), &request_, this);
    StartRead(&event_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    to_->Put(std::move(event_));
    event_.Clear();
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override { to_->End(FromGrpc(status)); }

  TextStream* const to_;
  const std::unique_ptr<wire::Coordinator::Stub> stub_;
  const std::shared_ptr<grpc::ClientContext> context_;
  const wire::GenerateTextRequest request_;
  wire::GenerateTextEvent event_;
};

TextStream::TextStream() : call_(std::make_shared<TextCall>(std::make_shared<Sink>(this))) {}

TextStream::~TextStream() = default;

void TextStream::Put(wire::GenerateTextEvent event) {
  absl::MutexLock lock(mu_);
  events_.push_back(std::move(event));
  WriteNext();
}

void TextStream::End(const absl::Status& status) {
  {
    absl::MutexLock lock(mu_);
    ended_ = true;
    status_ = status;
    WriteNext();
  }
  Unref();
}

// The context was made from this call's, so it ends when the caller goes.
void TextStream::Forward(std::unique_ptr<wire::Coordinator::Stub> stub,
                         std::shared_ptr<grpc::ClientContext> context,
                         const wire::GenerateTextRequest& request) {
  reader_ = std::make_unique<Reader>(this, std::move(stub), std::move(context), request);
  reader_->Start();
}

void TextStream::Refuse(const absl::Status& status) { End(status); }

void TextStream::WriteNext() {
  if (writing_ || finished_) return;
  if (!gone_ && !events_.empty()) {
    event_ = std::move(events_.front());
    events_.pop_front();
    writing_ = true;
    StartWrite(&event_);
  } else if (ended_) {
    finished_ = true;
    Finish(ToGrpc(gone_ ? absl::CancelledError("the caller has gone") : status_));
  } else {
    events_.clear();  // nobody reads them
  }
}

void TextStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(mu_);
  writing_ = false;
  if (!ok) gone_ = true;
  WriteNext();
}

void TextStream::OnCancel() {
  {
    absl::MutexLock lock(mu_);
    gone_ = true;
  }
  call_->Cancel();  // the end of the text ends the call
}

void TextStream::OnDone() { Unref(); }

void TextStream::Unref() {
  bool last;
  {
    absl::MutexLock lock(mu_);
    last = --refs_ == 0;
  }
  if (last) delete this;
}

}  // namespace strata
