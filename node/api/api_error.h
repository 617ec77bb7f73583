// Errors of requests, from statuses; each dialect of the API has its own form for them. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "node/http/http_server.h"

namespace strata {

struct ApiError {
  int http_status = 500;
  std::string message;          // printable
  std::string param;            // the field's path; empty: none
  std::string code;             // a word for programs, as OpenAI has them; empty: none
  std::string request_id = {};  // empty: not known
};

// JSON's text of an error in a dialect's form.
using ErrorForm = std::string (*)(const ApiError& error);

int HttpStatusOf(const absl::Status& status);
ApiError ErrorOf(const absl::Status& status);

// With Retry-After where trying again helps.
HttpResponse ErrorResponse(const absl::Status& status, ErrorForm form,
                           absl::string_view request_id = "");
HttpResponse ErrorResponse(int http_status, absl::string_view words, ErrorForm form,
                           absl::string_view request_id = "");
// 401, for a request without a token or with a wrong one.
HttpResponse WrongTokenResponse(absl::string_view words, ErrorForm form);

}  // namespace strata
