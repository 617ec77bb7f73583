#include "node/api/ollama/ollama_error.h"

#include "nlohmann/json.hpp"

namespace strata {

std::string OllamaError(const ApiError& error) {
  return nlohmann::json({{"error", error.message}}).dump();
}

}  // namespace strata
