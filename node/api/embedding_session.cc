#include "node/api/embedding_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace strata {

class EmbeddingSession::Sink final : public GenerationListener {
 public:
  Sink(std::shared_ptr<EmbeddingSession> session, size_t index)
      : session_(std::move(session)), index_(index) {}

  void OnStarted(const std::vector<int32_t>& prompt) override { prompt_tokens_ = prompt.size(); }
  void OnToken(const wire::SampledToken& token) override {
    vector_.assign(token.embedding().begin(), token.embedding().end());
  }
  void OnEnd(absl::Status status, FinishReason, const GenerationUsage&) override {
    if (status.ok() && vector_.empty()) {
      status = absl::UnavailableError("the cluster gave no embedding; try again");
    }
    session_->OnEnd(index_, prompt_tokens_, std::move(vector_), status);
  }

 private:
  const std::shared_ptr<EmbeddingSession> session_;  // shared with the other inputs' sinks
  const size_t index_;
  size_t prompt_tokens_ = 0;
  std::vector<float> vector_;
};

void EmbeddingSession::Start(GenerationSource* source, Options options,
                             const std::shared_ptr<HttpResponder>& responder,
                             std::shared_ptr<ApiCounters> counters, Done done) {
  std::shared_ptr<EmbeddingSession> session(
      new EmbeddingSession(source, std::move(options), std::move(counters), std::move(done)));
  responder->OnGone([weak = session->weak_from_this()] {
    const auto gone = weak.lock();
    if (gone == nullptr) return;
    ++gone->counters_->client_gone;
    gone->Abort(absl::CancelledError("the client has gone"));
  });
  for (size_t i = 0; i < kEmbeddingsAtATime; ++i) session->Next();
}

EmbeddingSession::EmbeddingSession(GenerationSource* source, Options options,
                                   std::shared_ptr<ApiCounters> counters, Done done)
    : source_(source),
      options_(std::move(options)),
      counters_(std::move(counters)),
      done_(std::move(done)),
      running_(options_.inputs.size()) {
  embeddings_.vectors.resize(options_.inputs.size());
  ++counters_->requests;
  ++counters_->running;
}

EmbeddingSession::~EmbeddingSession() {
  --counters_->running;
  options_.record->SetCompletion(
      {.model = options_.model_name,
       .choices = options_.inputs.size(),
       .prompt_tokens = embeddings_.prompt_tokens,
       .outcome = status_.ok()                   ? "ok"
                  : absl::IsCancelled(status_) ? "client_gone"
                                               : absl::StatusCodeToString(status_.code()),
       .error = ""});
}

void EmbeddingSession::Next() {
  size_t index = 0;
  {
    absl::MutexLock lock(mu_);
    if (done_ == nullptr || begun_ == options_.inputs.size()) return;
    index = begun_++;
  }
  const ApiPrompt& input = options_.inputs[index];
  wire::GenerateRequest request;
  request.set_model(options_.model_id);
  request.set_client(options_.client);
  request.set_id(index == 0 ? options_.request_id : absl::StrCat(options_.request_id, "/", index));
  request.set_prompt(input.text);
  request.mutable_tokens()->Assign(input.tokens.begin(), input.tokens.end());
  request.set_tokens_max(1);
  request.mutable_sampler()->set_pooling(wire::POOLING_OF_MODEL);
  auto handle = source_->Generate(request, std::make_shared<Sink>(shared_from_this(), index), {});
  bool is_over = false;
  {
    absl::MutexLock lock(mu_);
    is_over = done_ == nullptr;
    // It may have ended before Generate() returned.
    if (!is_over && embeddings_.vectors[index].empty()) running_[index] = handle;
  }
  if (is_over) handle->Cancel();
}

void EmbeddingSession::OnEnd(size_t index, size_t prompt_tokens, std::vector<float> vector,
                             const absl::Status& status) {
  if (!status.ok()) return Abort(status);
  Done done;
  Embeddings all;
  {
    absl::MutexLock lock(mu_);
    running_[index].reset();
    if (done_ == nullptr) return;
    embeddings_.prompt_tokens += prompt_tokens;
    embeddings_.vectors[index] = std::move(vector);
    if (++ended_ == options_.inputs.size()) {
      done = std::exchange(done_, nullptr);
      all.prompt_tokens = embeddings_.prompt_tokens;
      all.vectors = std::move(embeddings_.vectors);
    }
  }
  done != nullptr ? done(std::move(all)) : Next();
}

void EmbeddingSession::Abort(const absl::Status& status) {
  Done done;
  std::vector<std::shared_ptr<GenerationHandle>> running;
  {
    absl::MutexLock lock(mu_);
    done = std::exchange(done_, nullptr);
    if (done == nullptr) return;
    status_ = status;
    running = std::exchange(running_, std::vector<std::shared_ptr<GenerationHandle>>(running_.size()));
  }
  for (const auto& handle : running) {
    if (handle != nullptr) handle->Cancel();
  }
  if (!absl::IsCancelled(status)) {
    ++counters_->failed;
    done(status);
  }
}

}  // namespace strata
