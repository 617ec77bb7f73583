// Errors and other JSON in the form of Ollama's API. Pure.
#pragma once

#include <string>

#include "nlohmann/json_fwd.hpp"
#include "node/api/api_error.h"

namespace strata {

// {"error":"…"}
std::string OllamaError(const ApiError& error);

// JSON's text. Bytes that are not UTF-8 become U+FFFD: JSON cannot carry them.
std::string OllamaJson(const nlohmann::ordered_json& json);

}  // namespace strata
