// Errors in the form of Ollama's API. Pure.
#pragma once

#include <string>

#include "node/api/api_error.h"

namespace strata {

// {"error":"…"}
std::string OllamaError(const ApiError& error);

}  // namespace strata
