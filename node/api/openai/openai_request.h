// A client's request in OpenAI's forms (/v1/completions, /v1/chat/completions), parsed from its
// JSON. Pure; no byte of the input is trusted.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "node/api/api_request.h"

namespace strata {

// kInvalidArgument: what is wrong with which field; kUnimplemented: a field that asks for an
// unsupported feature (node/api/openai/openai_fields.h). Unknown fields are ignored.
absl::StatusOr<ApiRequest> ParseCompletion(absl::string_view body);
absl::StatusOr<ApiRequest> ParseChat(absl::string_view body);

}  // namespace strata
