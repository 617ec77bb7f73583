// The system prompt and the messages of a request in Anthropic's form, whose content is a string or
// parts. Pure; no byte of the input is trusted.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "node/api/api_request.h"

namespace strata {

// Clients expect ids of calls to begin so. Templates do not get it: some take no longer ids.
inline constexpr absl::string_view kAnthropicCallPrefix = "toolu_";

// "system", then "messages"; where the last one is the assistant's, it is gone on with.
// `body`: the text of `json`, in which a call's input has the order of its members.
// kInvalidArgument (BadParam), kUnimplemented: parts other than text, thoughts, calls and results.
absl::Status ReadAnthropicMessages(const nlohmann::json& json, absl::string_view body,
                                   ApiRequest* request);

}  // namespace strata
