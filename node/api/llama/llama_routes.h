// The paths of llama-server's own API: /completion, /tokenize, /apply-template, /props, and those
// that are not supported, which say so in its words.
#pragma once

#include "node/api/api_backend.h"
#include "node/api/api_route.h"

namespace strata {

// REQUIRES: `backend` outlives them.
ApiRoutes LlamaRoutes(ApiBackend* backend);

}  // namespace strata
