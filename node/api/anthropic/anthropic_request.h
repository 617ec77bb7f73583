// A client's request in Anthropic's form (https://platform.claude.com/docs/en/api/messages), parsed
// from its JSON. Pure; no byte of the input is trusted.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "node/api/api_request.h"

namespace strata {

// The body of /v1/messages, or of /v1/messages/count_tokens. kInvalidArgument: what is wrong with
// which field; kUnimplemented: a feature that is not supported. Unknown fields are ignored.
absl::StatusOr<ApiRequest> ParseAnthropicMessages(absl::string_view body);

}  // namespace strata
