// What a request says of the form of its answer: response_format, grammar, tools. Pure; every byte
// is a stranger's.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "node/api/openai/openai_request.h"
#include "node/chat/tool_calls.h"

namespace strata {

// `body` is the text that `json` was read from: schemas keep the order that they have there.
absl::Status ReadAnswerFormat(const nlohmann::json& json, absl::string_view body,
                              ApiRequest* request);
absl::Status ReadTools(const nlohmann::json& json, absl::string_view body, ApiRequest* request);
// "tool_calls" and "tool_call_id" of a message that is called `name`.
absl::Status ReadCallsOf(const nlohmann::json& json, const std::string& name, ChatMessage* message);

// Gives the sampler the grammar of what is asked for, in the form that the model writes calls in.
absl::Status Constrain(ToolForm form, ApiRequest* request);

}  // namespace strata
