// Requests and responses of OpenAI's Embeddings API. Pure; no byte of a request is trusted.
// https://platform.openai.com/docs/api-reference/embeddings
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "node/api/api_request.h"
#include "node/api/api_response.h"
#include "node/api/field_reader.h"

namespace strata {

// kInvalidArgument, kUnimplemented: the field and what is wrong (request_status.h).
absl::StatusOr<EmbeddingRequest> ParseEmbeddings(absl::string_view body);

// The field `name`, which must be there: a string, tokens, or an array of either. Reads nothing
// where a field before it was wrong.
void ReadEmbeddingInputs(const char* name, FieldReader* fields, EmbeddingRequest* request);

std::string EmbeddingsJson(const std::string& model, bool is_base64,
                           const ApiEmbeddings& embeddings);

}  // namespace strata
