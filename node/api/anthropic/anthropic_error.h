// Errors in the form of Anthropic's API (https://platform.claude.com/docs/en/api/errors). Pure.
#pragma once

#include <string>

#include "node/api/api_error.h"

namespace strata {

// {"type":"error","error":{"type":…,"message":…},"request_id":…}
std::string AnthropicError(const ApiError& error);

}  // namespace strata
