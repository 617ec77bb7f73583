// The fields of a request that constrain the output: response_format, grammar, tools. Pure; no byte
// of the input is trusted.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "node/api/answer_format.h"
#include "node/api/api_request.h"

namespace strata {

// `body` is the text that `json` was parsed from: schemas keep the order that they have there.
absl::Status ReadAnswerFormat(const nlohmann::json& json, absl::string_view body,
                              ApiRequest* request);
// Ollama's "format": "json", or a schema.
absl::Status ReadFormat(const nlohmann::json& json, AnswerFormat* answer);
absl::Status ReadTools(const nlohmann::json& json, absl::string_view body, ApiRequest* request);
// Reads "tool_calls", "function_call" and "tool_call_id" of a message; `name` is its path, for
// errors.
absl::Status ReadCallsOf(const nlohmann::json& json, const std::string& name, ChatMessage* message);

}  // namespace strata
