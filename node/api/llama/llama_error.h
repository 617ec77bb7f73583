// Errors in the form of llama-server's own API
// (https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md). Pure.
#pragma once

#include <string>

#include "node/api/api_error.h"

namespace strata {

// {"error":{"code":400,"message":…,"type":"invalid_request_error"}}
std::string LlamaError(const ApiError& error);

}  // namespace strata
