#include "node/api/llama/llama_error.h"

#include "nlohmann/json.hpp"

namespace strata {
namespace {

const char* TypeOf(const ApiError& error) {
  if (error.code == "context_length_exceeded") return "exceed_context_size_error";
  switch (error.http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    default:
      return error.http_status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

std::string LlamaError(const ApiError& error) {
  const nlohmann::ordered_json json = {
      {"error",
       {{"code", error.http_status}, {"message", error.message}, {"type", TypeOf(error)}}}};
  return json.dump();
}

}  // namespace strata
