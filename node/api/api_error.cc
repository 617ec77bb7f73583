#include "node/api/api_error.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

constexpr int64_t kRetryMs = 1'000;

}  // namespace

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return IsClientLimit(status) ? 429 : 503;
    case absl::StatusCode::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

ApiError ErrorOf(const absl::Status& status) {
  ApiError error = {.http_status = HttpStatusOf(status),
                    .message = PrintableLines(status.message()),
                    .param = ParamOf(status),
                    .code = ErrorCodeOf(status)};
  if (error.code.empty() && absl::IsNotFound(status)) error.code = "model_not_found";
  if (error.code.empty() && absl::IsOutOfRange(status)) error.code = "context_length_exceeded";
  if (error.param.empty() && absl::IsNotFound(status)) error.param = "model";
  return error;
}

HttpResponse ErrorResponse(const absl::Status& status, ErrorForm form,
                           absl::string_view request_id) {
  ApiError error = ErrorOf(status);
  error.request_id = std::string(request_id);
  HttpResponse response = {.status = error.http_status, .body = form(error)};
  if (response.status == 429 || response.status == 503) {
    const int64_t ms = std::max<int64_t>(RetryAfterMs(status).value_or(kRetryMs), 0);
    response.headers.emplace_back("Retry-After", absl::StrCat(std::max<int64_t>(ms / 1000, 1)));
    response.headers.emplace_back("retry-after-ms", absl::StrCat(ms));
  }
  return response;
}

HttpResponse ErrorResponse(int http_status, absl::string_view words, ErrorForm form,
                           absl::string_view request_id) {
  HttpResponse response = {.status = http_status,
                           .body = form({.http_status = http_status,
                                         .message = PrintableLines(words),
                                         .request_id = std::string(request_id)})};
  if (http_status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

HttpResponse WrongTokenResponse(absl::string_view words, ErrorForm form) {
  HttpResponse response = {
      .status = 401,
      .body =
          form({.http_status = 401, .message = PrintableLines(words), .code = "invalid_api_key"})};
  response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace strata
