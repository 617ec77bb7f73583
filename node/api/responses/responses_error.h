// Errors of OpenAI's Responses API. Pure.
#pragma once

#include <string>

#include "node/api/api_error.h"

namespace strata {

// In OpenAI's form; what a chat calls "messages" is this API's "input".
std::string ResponsesError(const ApiError& error);

}  // namespace strata
