// A client's request in Gemini's form (https://ai.google.dev/api/generate-content), parsed from its
// JSON. The model and whether it is streamed are in its path. Pure; no byte of the input is
// trusted.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "node/api/api_request.h"

namespace strata {

// The body of generateContent. kInvalidArgument: what is wrong with which field; kUnimplemented: a
// feature that is not supported. Unknown fields are ignored.
absl::StatusOr<ApiRequest> ParseGeminiGenerate(absl::string_view body);

// The body of countTokens, whose contents may be in a "generateContentRequest".
absl::StatusOr<ApiRequest> ParseGeminiCount(absl::string_view body);

// The body of embedContent, or of batchEmbedContents.
absl::StatusOr<EmbeddingRequest> ParseGeminiEmbed(absl::string_view body, bool is_batch);

}  // namespace strata
