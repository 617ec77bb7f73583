#include "node/api/openai/openai_error.h"

#include "nlohmann/json.hpp"

namespace strata {
namespace {

const char* TypeOf(int http_status) {
  if (http_status == 429) return "rate_limit_error";
  return http_status < 500 ? "invalid_request_error" : "server_error";
}

}  // namespace

std::string OpenAiError(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::json() : nlohmann::json(text);
  };
  const nlohmann::ordered_json json = {{"error",
                                        {{"message", error.message},
                                         {"type", TypeOf(error.http_status)},
                                         {"param", or_null(error.param)},
                                         {"code", or_null(error.code)}}}};
  return json.dump();
}

}  // namespace strata
