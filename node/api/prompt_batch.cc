#include "node/api/prompt_batch.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace strata {

class PromptBatch::Sink final : public GenerationListener {
 public:
  Sink(std::shared_ptr<PromptBatch> batch, size_t index)
      : batch_(std::move(batch)), index_(index) {}

  void OnStarted(const std::vector<int32_t>& prompt) override { prompt_tokens_ = prompt.size(); }
  void OnToken(const wire::SampledToken& token) override { token_ = token; }
  void OnEnd(absl::Status status, FinishReason, const GenerationUsage&) override {
    if (status.ok() && !token_) {
      status = absl::UnavailableError("the cluster gave no result; try again");
    }
    batch_->OnEnd(index_, prompt_tokens_, std::move(token_).value_or(wire::SampledToken()), status);
  }

 private:
  const std::shared_ptr<PromptBatch> batch_;  // shared with the other prompts' sinks
  const size_t index_;
  size_t prompt_tokens_ = 0;
  std::optional<wire::SampledToken> token_;
};

void PromptBatch::Start(GenerationSource* source, Options options,
                        const std::shared_ptr<HttpResponder>& responder,
                        std::shared_ptr<ApiCounters> counters, Done done) {
  std::shared_ptr<PromptBatch> batch(
      new PromptBatch(source, std::move(options), std::move(counters), std::move(done)));
  responder->OnGone([weak = batch->weak_from_this()] {
    const auto gone = weak.lock();
    if (gone == nullptr) return;
    ++gone->counters_->client_gone;
    gone->Abort(absl::CancelledError("the client has gone"));
  });
  for (size_t i = 0; i < kPromptsAtATime; ++i) batch->Next();
}

PromptBatch::PromptBatch(GenerationSource* source, Options options,
                         std::shared_ptr<ApiCounters> counters, Done done)
    : source_(source),
      options_(std::move(options)),
      counters_(std::move(counters)),
      done_(std::move(done)),
      running_(options_.requests.size()) {
  results_.tokens.resize(options_.requests.size());
  ++counters_->requests;
  ++counters_->running;
}

PromptBatch::~PromptBatch() {
  --counters_->running;
  options_.record->SetCompletion({.model = options_.model_name,
                                  .choices = options_.requests.size(),
                                  .prompt_tokens = results_.prompt_tokens,
                                  .outcome = status_.ok() ? "ok"
                                             : absl::IsCancelled(status_)
                                                 ? "client_gone"
                                                 : absl::StatusCodeToString(status_.code()),
                                  .error = ""});
}

void PromptBatch::Next() {
  size_t index = 0;
  {
    absl::MutexLock lock(mu_);
    if (done_ == nullptr || begun_ == options_.requests.size()) return;
    index = begun_++;
  }
  wire::GenerateRequest& request = options_.requests[index];  // nobody else's
  request.set_id(index == 0 ? options_.request_id : absl::StrCat(options_.request_id, "/", index));
  auto handle = source_->Generate(request, std::make_shared<Sink>(shared_from_this(), index), {});
  bool is_over = false;
  {
    absl::MutexLock lock(mu_);
    is_over = done_ == nullptr;
    if (!is_over && !running_[index].has_ended) running_[index].handle = handle;
  }
  if (is_over) handle->Cancel();
}

void PromptBatch::OnEnd(size_t index, size_t prompt_tokens, wire::SampledToken token,
                        const absl::Status& status) {
  if (!status.ok()) return Abort(status);
  Done done;
  Results all;
  {
    absl::MutexLock lock(mu_);
    running_[index] = {.handle = nullptr, .has_ended = true};
    if (done_ == nullptr) return;
    results_.prompt_tokens += prompt_tokens;
    results_.tokens[index] = std::move(token);
    if (++ended_ == results_.tokens.size()) {
      done = std::exchange(done_, nullptr);
      all.prompt_tokens = results_.prompt_tokens;
      all.tokens = std::move(results_.tokens);
    }
  }
  done != nullptr ? done(std::move(all)) : Next();
}

void PromptBatch::Abort(const absl::Status& status) {
  Done done;
  std::vector<Running> running;
  {
    absl::MutexLock lock(mu_);
    done = std::exchange(done_, nullptr);
    if (done == nullptr) return;
    status_ = status;
    running = std::exchange(running_, std::vector<Running>(running_.size()));
  }
  for (const Running& one : running) {
    if (one.handle != nullptr) one.handle->Cancel();
  }
  if (!absl::IsCancelled(status)) {
    ++counters_->failed;
    done(status);
  }
}

}  // namespace strata
