// The log line of one request, written at its end: client, path, counts of tokens, times and
// outcome. Filled in as the request passes through the API.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "node/api/api_tokens.h"
#include "node/http/http_server.h"
#include "transport/base/steady_time.h"

namespace strata {

// Thread-safe. Shared by the request's handler and its responder; the destructor writes the line,
// where the log is on.
class RequestRecord {
 public:
  explicit RequestRecord(const HttpRequest& request);
  ~RequestRecord();

  SteadyTime since() const { return since_; }

  void SetHttpStatus(int status);  // the first one counts
  // Set for completion requests.
  struct Completion {
    std::string model;
    uint64_t choices = 0;
    uint64_t prompt_tokens = 0;
    uint64_t cached_tokens = 0;
    uint64_t tokens = 0;
    std::optional<absl::Duration> first_token;  // since the request came
    std::string outcome;                        // "ok", "client_gone", or a status' code
    std::string error;                          // REQUIRES: quotes nothing that the client sent
  };
  void SetCompletion(Completion completion);
  // The grant of the request's token; held as long as this lives.
  void SetTokenGrant(ApiTokens::TokenGrant grant);

 private:
  const std::string id_, client_, method_, path_;
  const SteadyTime since_;

  absl::Mutex mu_;
  int status_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<Completion> completion_ ABSL_GUARDED_BY(mu_);
  ApiTokens::TokenGrant grant_ ABSL_GUARDED_BY(mu_);
};

// Wraps `to`; also sets the response's HTTP status in `record`.
std::shared_ptr<HttpResponder> Recorded(std::shared_ptr<HttpResponder> to,
                                        std::shared_ptr<RequestRecord> record);

}  // namespace strata
