// The paths of OpenAI's API: /v1/models, /v1/completions, /v1/chat/completions; also without /v1.
#pragma once

#include "node/api/api_backend.h"
#include "node/api/api_route.h"

namespace strata {

// REQUIRES: `backend` outlives them.
ApiRoutes OpenAiRoutes(ApiBackend* backend);

}  // namespace strata
