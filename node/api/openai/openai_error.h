// Errors in the form of OpenAI's API, from statuses. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "node/http/http_server.h"

namespace strata {

// {"error":{"message":…,"type":…,"param":…,"code":…}}
std::string ErrorJson(const absl::Status& status);
std::string ErrorJson(int http_status, absl::string_view words);

int HttpStatusOf(const absl::Status& status);
// With Retry-After where trying again helps.
HttpResponse ErrorResponse(const absl::Status& status);
HttpResponse ErrorResponse(int http_status, const std::string& words);
// 401, for a request without a token or with a wrong one.
HttpResponse WrongTokenResponse(absl::string_view words);

}  // namespace strata
