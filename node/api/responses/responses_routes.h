// The paths of OpenAI's Responses API: /v1/responses, and the responses that are stored.
#pragma once

#include "node/api/api_backend.h"
#include "node/api/api_route.h"

namespace strata {

// REQUIRES: `backend` outlives them. They share a store of their own.
ApiRoutes ResponsesRoutes(ApiBackend* backend);

}  // namespace strata
