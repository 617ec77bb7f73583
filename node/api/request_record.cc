#include "node/api/request_record.h"

#include <utility>

#include "transport/base/steady_time.h"
#include "transport/rpc/request_log.h"

namespace strata {
namespace {

class RecordedResponder final : public HttpResponder {
 public:
  RecordedResponder(std::shared_ptr<HttpResponder> to, std::shared_ptr<RequestRecord> record)
      : to_(std::move(to)), record_(std::move(record)) {}

  void Answer(HttpResponse response) override {
    record_->SetHttpStatus(response.status);
    to_->Answer(std::move(response));
  }
  void Begin(HttpResponse head) override {
    record_->SetHttpStatus(head.status);
    to_->Begin(std::move(head));
  }
  void Write(absl::string_view bytes) override { to_->Write(bytes); }
  void End() override { to_->End(); }
  void OnGone(absl::AnyInvocable<void() &&> fn) override { to_->OnGone(std::move(fn)); }
  void Run(absl::AnyInvocable<void() &&> fn) override { to_->Run(std::move(fn)); }

 private:
  const std::shared_ptr<HttpResponder> to_;      // not shared
  const std::shared_ptr<RequestRecord> record_;  // shared with the request's handler
};

// Polled by machines, and of no interest while all is well.
bool IsRoutine(absl::string_view path, int status) {
  return status == 200 && (path == "/health" || path == "/metrics");
}

}  // namespace

RequestRecord::RequestRecord(const HttpRequest& request)
    : id_(request.id),
      client_(request.client),
      method_(request.method),
      path_(request.path),
      since_(SteadyTime::Now()) {}

RequestRecord::~RequestRecord() {
  if (!RequestLogOn() || IsRoutine(path_, status_)) return;
  RequestLine line("request", id_);
  line.Add("client", client_).Add("method", method_).Add("path", path_).Add("status", status_);
  if (!grant_.name().empty()) line.Add("token", grant_.name());
  if (completion_) {
    line.Add("model", completion_->model)
        .Add("outcome", completion_->outcome)
        .Add("choices", completion_->choices)
        .Add("prompt_tokens", completion_->prompt_tokens)
        .Add("cached_tokens", completion_->cached_tokens)
        .Add("tokens", completion_->tokens);
    if (completion_->first_token) {
      line.Add("first_token_ms", absl::ToInt64Milliseconds(*completion_->first_token));
    }
    if (!completion_->error.empty()) line.Add("error", completion_->error);
  }
  line.Add("ms", absl::ToInt64Milliseconds(SteadyTime::Now() - since_));
}

void RequestRecord::SetHttpStatus(int status) {
  absl::MutexLock lock(mu_);
  if (status_ == 0) status_ = status;
}

void RequestRecord::SetTokenGrant(ApiTokens::TokenGrant grant) {
  absl::MutexLock lock(mu_);
  grant_ = std::move(grant);
}

void RequestRecord::SetCompletion(Completion completion) {
  absl::MutexLock lock(mu_);
  completion_ = std::move(completion);
}

std::shared_ptr<HttpResponder> Recorded(std::shared_ptr<HttpResponder> to,
                                        std::shared_ptr<RequestRecord> record) {
  return std::make_shared<RecordedResponder>(std::move(to), std::move(record));
}

}  // namespace strata
