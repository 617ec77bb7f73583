#include "node/api/ollama/ollama_error.h"

#include "nlohmann/json.hpp"

namespace strata {

std::string OllamaError(const ApiError& error) {
  return nlohmann::json({{"error", error.message}}).dump();
}

std::string OllamaJson(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace strata
