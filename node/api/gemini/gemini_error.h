// Errors in the form of Gemini's API (https://ai.google.dev/gemini-api/docs/troubleshooting). Pure.
#pragma once

#include <string>

#include "node/api/api_error.h"

namespace strata {

// {"error":{"code":…,"message":…,"status":…}}
std::string GeminiError(const ApiError& error);

}  // namespace strata
