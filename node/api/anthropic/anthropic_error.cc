#include "node/api/anthropic/anthropic_error.h"

#include "nlohmann/json.hpp"

namespace strata {
namespace {

const char* TypeOf(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

std::string AnthropicError(const ApiError& error) {
  nlohmann::ordered_json json = {
      {"type", "error"},
      {"error", {{"type", TypeOf(error.http_status)}, {"message", error.message}}},
      {"request_id", nullptr}};
  if (!error.request_id.empty()) json["request_id"] = error.request_id;
  return json.dump();
}

}  // namespace strata
