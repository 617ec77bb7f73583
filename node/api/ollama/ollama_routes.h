// The paths of Ollama's API (https://github.com/ollama/ollama/blob/main/docs/api.md): /api/….
#pragma once

#include <memory>

#include "node/api/api_backend.h"
#include "node/api/api_route.h"

namespace strata {

// REQUIRES: `backend` outlives them.
ApiRoutes OllamaRoutes(ApiBackend* backend);

// Answers GET and HEAD of "/", by which Ollama's programs find a server. Only for a port of
// Ollama's: other ports may have a page there. False: it is another request.
bool AnswerOllamaGreeting(const HttpRequest& request, HttpResponder* responder);

}  // namespace strata
