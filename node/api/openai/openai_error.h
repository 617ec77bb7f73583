// Errors in the form of OpenAI's API. Pure.
#pragma once

#include <string>

#include "node/api/api_error.h"

namespace strata {

// {"error":{"message":…,"type":…,"param":…,"code":…}}
std::string OpenAiError(const ApiError& error);

}  // namespace strata
