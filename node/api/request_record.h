// What the log says of one request at its end, in one line: who asked, for what, how much came of
// it, how long it took, and how it ended. Filled in on the request's way through the API.
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

// Thread-safe. Shared by the request's handler and its responder; its line is written when both
// have let go of it, where the log is on.
class RequestRecord {
 public:
  explicit RequestRecord(const HttpRequest& request);
  ~RequestRecord();

  SteadyTime since() const { return since_; }

  void SetHttpStatus(int status);  // the first one counts
  // Of texts.
  struct Texts {
    std::string model;
    uint64_t texts = 0;
    uint64_t prompt_tokens = 0;
    uint64_t cached_tokens = 0;
    uint64_t tokens = 0;
    std::optional<absl::Duration> first_token;  // since the request came
    std::string outcome;                        // "ok", "client_gone", or a status' code
    std::string error;                          // nothing that may quote what the client sent
  };
  void SetTexts(Texts texts);
  // Of the token that the request came with; kept as long as this is.
  void SetAdmission(ApiTokens::Admission admission);

 private:
  const std::string id_, client_, method_, path_;
  const SteadyTime since_;

  absl::Mutex mu_;
  int status_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<Texts> texts_ ABSL_GUARDED_BY(mu_);
  ApiTokens::Admission admission_ ABSL_GUARDED_BY(mu_);
};

// `to`, which also tells `record` how the request is answered.
std::shared_ptr<HttpResponder> Recorded(std::shared_ptr<HttpResponder> to,
                                        std::shared_ptr<RequestRecord> record);

}  // namespace strata
