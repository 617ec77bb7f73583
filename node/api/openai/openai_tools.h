// The fields of a request that constrain the output: response_format, grammar, tools. Pure; no byte
// of the input is trusted.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "node/api/openai/openai_request.h"
#include "node/chat/chat_format.h"

namespace strata {

// `body` is the text that `json` was parsed from: schemas keep the order that they have there.
absl::Status ReadAnswerFormat(const nlohmann::json& json, absl::string_view body,
                              ApiRequest* request);
absl::Status ReadTools(const nlohmann::json& json, absl::string_view body, ApiRequest* request);
// Reads "tool_calls" and "tool_call_id" of a message; `name` is its path, for errors.
absl::Status ReadCallsOf(const nlohmann::json& json, const std::string& name, ChatMessage* message);
// Gives calls and results without an id one, in the order in which they come. kInvalidArgument: a
// result without an id has no call.
absl::Status MatchResults(std::vector<ChatMessage>* messages);

// Sets the sampler's grammar from the request's schema and tools, in the model's form of calls, and
// what of a strict request is to be checked at the end (openai/answer_check.h).
absl::Status Constrain(const ChatFormat& format, ApiRequest* request);
// The path of a tool's schema in the request.
std::string ToolPath(size_t i);

}  // namespace strata
