// The fields of a request that say whether, how hard and how long a model thinks, and what becomes
// of its thoughts; those of OpenAI, OpenRouter, Anthropic, Ollama, vLLM and DashScope. Pure; no
// byte of the input is trusted.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"
#include "node/api/api_request.h"

namespace strata {

// Sets the variables of the template that the fields mean, beside those of "chat_template_kwargs",
// which win, the budget of thoughts, and whether they are told apart. kInvalidArgument (BadParam).
absl::Status ReadThinking(const nlohmann::json& json, ApiRequest* request);

// What the assistant thought, from a message of the history: a field of it, or parts of its
// content. Empty: nothing.
std::string ThoughtOf(const nlohmann::json& message);
// Whether a part of a message's content is a thought.
bool IsThoughtPart(const nlohmann::json& part);

}  // namespace strata
