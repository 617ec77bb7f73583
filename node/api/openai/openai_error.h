// Errors as OpenAI's API writes them, and the statuses that they come from. Pure.
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
// 401, where no token or a wrong one was shown.
HttpResponse WrongTokenResponse(absl::string_view words);

}  // namespace strata
