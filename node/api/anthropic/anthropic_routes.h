// The paths of Anthropic's API: /v1/messages, /v1/messages/count_tokens, and for its clients
// /v1/models.
#pragma once

#include "node/api/api_backend.h"
#include "node/api/api_route.h"

namespace strata {

// REQUIRES: `backend` outlives them.
ApiRoutes AnthropicRoutes(ApiBackend* backend);

}  // namespace strata
