#include "node/api/openai/openai_error.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

constexpr int64_t kRetryMs = 1'000;

const char* TypeOf(int http_status) {
  if (http_status == 429) return "rate_limit_error";
  return http_status < 500 ? "invalid_request_error" : "server_error";
}

// An empty `param` or `code` is null.
std::string ErrorJson(int http_status, absl::string_view words, const std::string& param,
                      const std::string& code) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::json() : nlohmann::json(text);
  };
  const nlohmann::ordered_json error = {{"error",
                                         {{"message", PrintableLines(words)},
                                          {"type", TypeOf(http_status)},
                                          {"param", or_null(param)},
                                          {"code", or_null(code)}}}};
  return error.dump();
}

}  // namespace

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kOutOfRange:
      return 400;
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

std::string ErrorJson(const absl::Status& status) {
  std::string code = ErrorCodeOf(status);
  if (code.empty() && absl::IsNotFound(status)) code = "model_not_found";
  if (code.empty() && absl::IsOutOfRange(status)) code = "context_length_exceeded";
  std::string param = ParamOf(status);
  if (param.empty() && absl::IsNotFound(status)) param = "model";
  return ErrorJson(HttpStatusOf(status), status.message(), param, code);
}

std::string ErrorJson(int http_status, absl::string_view words) {
  return ErrorJson(http_status, words, "", "");
}

HttpResponse ErrorResponse(const absl::Status& status) {
  HttpResponse response = {.status = HttpStatusOf(status), .body = ErrorJson(status)};
  if (response.status == 429 || response.status == 503) {
    const int64_t ms = std::max<int64_t>(RetryAfterMs(status).value_or(kRetryMs), 0);
    response.headers.emplace_back("Retry-After", absl::StrCat(std::max<int64_t>(ms / 1000, 1)));
    response.headers.emplace_back("retry-after-ms", absl::StrCat(ms));
  }
  return response;
}

HttpResponse WrongTokenResponse(absl::string_view words) {
  HttpResponse response = {.status = 401, .body = ErrorJson(401, words, "", "invalid_api_key")};
  response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

HttpResponse ErrorResponse(int http_status, const std::string& words) {
  HttpResponse response = {.status = http_status, .body = ErrorJson(http_status, words)};
  if (http_status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace strata
