// The paths of Gemini's API: /v1beta/models, and its methods of a model, as
// /v1beta/models/NAME:generateContent; the same below /v1.
#pragma once

#include "node/api/api_backend.h"
#include "node/api/api_route.h"

namespace strata {

// REQUIRES: `backend` outlives them.
ApiRoutes GeminiRoutes(ApiBackend* backend);

}  // namespace strata
