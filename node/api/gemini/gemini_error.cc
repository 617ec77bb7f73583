#include "node/api/gemini/gemini_error.h"

#include "nlohmann/json.hpp"

namespace strata {
namespace {

const char* CodeNameOf(int http_status) {
  switch (http_status) {
    case 401:
      return "UNAUTHENTICATED";
    case 403:
      return "PERMISSION_DENIED";
    case 404:
      return "NOT_FOUND";
    case 413:
    case 429:
      return "RESOURCE_EXHAUSTED";
    case 501:
      return "UNIMPLEMENTED";
    case 503:
      return "UNAVAILABLE";
    default:
      return http_status < 500 ? "INVALID_ARGUMENT" : "INTERNAL";
  }
}

}  // namespace

std::string GeminiError(const ApiError& error) {
  const nlohmann::ordered_json json = {{"error",
                                        {{"code", error.http_status},
                                         {"message", error.message},
                                         {"status", CodeNameOf(error.http_status)}}}};
  return json.dump();
}

}  // namespace strata
