#include "node/openai_error.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "coordinator/text_request.h"
#include "nlohmann/json.hpp"
#include "transport/printable_text.h"

namespace strata {
namespace {

constexpr absl::string_view kParam = "strata/api_param";
constexpr absl::string_view kCode = "strata/api_code";
constexpr int64_t kRetryMs = 1'000;

nlohmann::json PayloadOf(const absl::Status& status, absl::string_view key) {
  const auto payload = status.GetPayload(key);
  if (!payload) return nullptr;
  return std::string(*payload);
}

const char* TypeOf(int http_status) {
  if (http_status == 429) return "rate_limit_error";
  return http_status < 500 ? "invalid_request_error" : "server_error";
}

std::string ErrorJson(int http_status, absl::string_view words, nlohmann::json param,
                      nlohmann::json code) {
  const nlohmann::ordered_json error = {{"error",
                                         {{"message", PrintableLines(words)},
                                          {"type", TypeOf(http_status)},
                                          {"param", std::move(param)},
                                          {"code", std::move(code)}}}};
  return error.dump();
}

}  // namespace

absl::Status BadParam(absl::string_view param, absl::string_view words) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(param, ": ", words));
  status.SetPayload(kParam, absl::Cord(param));
  return status;
}

absl::Status UnsupportedParam(absl::string_view param, absl::string_view words) {
  absl::Status status = absl::UnimplementedError(
      absl::StrCat(param, words.empty() ? "" : absl::StrCat(" ", words), " is not supported yet"));
  status.SetPayload(kParam, absl::Cord(param));
  status.SetPayload(kCode, absl::Cord("unsupported_parameter"));
  return status;
}

absl::Status WithErrorCode(absl::Status status, absl::string_view code) {
  status.SetPayload(kCode, absl::Cord(code));
  return status;
}

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
      return IsOfOneClient(status) ? 429 : 503;
    case absl::StatusCode::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

std::string ErrorJson(const absl::Status& status) {
  nlohmann::json code = PayloadOf(status, kCode);
  if (code.is_null() && absl::IsNotFound(status)) code = "model_not_found";
  if (code.is_null() && absl::IsOutOfRange(status)) code = "context_length_exceeded";
  nlohmann::json param = PayloadOf(status, kParam);
  if (param.is_null() && absl::IsNotFound(status)) param = "model";
  return ErrorJson(HttpStatusOf(status), status.message(), std::move(param), std::move(code));
}

std::string ErrorJson(int http_status, absl::string_view words) {
  return ErrorJson(http_status, words, nullptr, nullptr);
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
  HttpResponse response = {.status = 401,
                           .body = ErrorJson(401, words, nullptr, "invalid_api_key")};
  response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

HttpResponse ErrorResponse(int http_status, const std::string& words) {
  HttpResponse response = {.status = http_status, .body = ErrorJson(http_status, words)};
  if (http_status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace strata
