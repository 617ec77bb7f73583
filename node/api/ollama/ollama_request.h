// Requests of Ollama's API (https://github.com/ollama/ollama/blob/main/docs/api.md). Pure; no byte
// of the input is trusted.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "node/api/api_request.h"

namespace strata {

struct OllamaRequest {
  ApiRequest request;
  // It has nothing to answer: the client only wants the model to be loaded, or, where it is to stay
  // for no time, unloaded.
  bool only_loads = false;
  bool unloads = false;
};

// The bodies of /api/chat and /api/generate. kInvalidArgument (BadParam, UnsupportedParam) names
// the field. Streams unless the body says otherwise; the options have Ollama's defaults.
absl::StatusOr<OllamaRequest> ParseOllamaChat(absl::string_view body);
absl::StatusOr<OllamaRequest> ParseOllamaGenerate(absl::string_view body);

// The chat of one turn as a completion: its system prompt, if it has one, and its prompt as they
// are. For models without a chat template.
// REQUIRES: `request` is ParseOllamaGenerate()'s.
ApiRequest AsCompletion(ApiRequest request);

// The bodies of /api/embed, and of /api/embeddings, whose one input is its prompt.
absl::StatusOr<EmbeddingRequest> ParseOllamaEmbed(absl::string_view body);
absl::StatusOr<EmbeddingRequest> ParseOllamaEmbeddings(absl::string_view body);

// A request that names a model: of /api/show, /api/pull.
struct OllamaModelRequest {
  std::string model;
  bool stream = true;
};
absl::StatusOr<OllamaModelRequest> ParseOllamaModel(absl::string_view body);

}  // namespace strata
