// A request of a client and the way to answer it, as the handlers of all dialects get it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "node/api/api_error.h"
#include "node/api/api_scopes.h"
#include "node/api/patient_responder.h"
#include "node/api/request_record.h"
#include "node/http/http_server.h"

namespace strata {

struct ApiExchange {
  HttpRequest http;
  std::shared_ptr<HttpResponder> responder;  // shared with the connection
  std::shared_ptr<RequestRecord> record;     // shared with the responder
  ErrorForm error_form = nullptr;
  ApiScopes scopes = {};    // of the client
  std::string cache_scope;  // of its token, GenerationRequest::cache_scope
  const StreamForm* stream_form = nullptr;

  // The owner of responses that clients may read again: another token is another one, of whatever
  // name.
  std::string Owner() const { return http.client + cache_scope; }
  // The body, which is not kept: it may be large.
  std::string TakeBody() { return std::exchange(http.body, {}); }
  void Fail(const absl::Status& status) const {
    responder->Answer(ErrorResponse(status, error_form, http.id));
  }
  void Fail(int http_status, absl::string_view words) const {
    responder->Answer(ErrorResponse(http_status, words, error_form, http.id));
  }
};
using SharedExchange = std::shared_ptr<ApiExchange>;  // shared by the request's callbacks

}  // namespace strata
