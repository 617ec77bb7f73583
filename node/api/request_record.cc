#include "node/api/request_record.h"

#include <utility>

#include "node/http/forwarding_responder.h"
#include "transport/base/steady_time.h"
#include "transport/rpc/request_log.h"

namespace strata {
namespace {

class RecordedResponder final : public ForwardingResponder {
 public:
  RecordedResponder(std::shared_ptr<HttpResponder> to, std::shared_ptr<RequestRecord> record)
      : ForwardingResponder(std::move(to)), record_(std::move(record)) {}

  void Answer(HttpResponse response) override {
    record_->SetHttpStatus(response.status);
    ForwardingResponder::Answer(std::move(response));
  }
  void Begin(HttpResponse head) override {
    record_->SetHttpStatus(head.status);
    ForwardingResponder::Begin(std::move(head));
  }

 private:
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
