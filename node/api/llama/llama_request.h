// Requests in the forms of llama-server's own API
// (https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md), parsed from their
// JSON. Pure; no byte of the input is trusted.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "node/api/api_request.h"

namespace strata {

struct LlamaCompletion {
  ApiRequest request;
  bool is_list = false;        // the response is an array, of one entry for each choice
  bool return_tokens = false;  // the response has the tokens' ids; a stream always has
  uint32_t n_probs = 0;        // likeliest tokens to report for each; 0: none
};

// The body of /completion. kInvalidArgument: what is wrong with which field; kUnimplemented: a
// field that asks for an unsupported feature. Unknown fields are ignored.
absl::StatusOr<LlamaCompletion> ParseLlamaCompletion(absl::string_view body);

// The body of /infill: a completion whose prompt, behind "input_prefix", may be empty, with
// "input_suffix" and other files, "input_extra". Errors as of ParseLlamaCompletion().
absl::StatusOr<LlamaCompletion> ParseLlamaInfill(absl::string_view body);

// The body of /tokenize: a completion whose prompt is the content, which may be empty; or vLLM's
// "prompt" or "messages".
absl::StatusOr<ApiRequest> ParseLlamaTokenize(absl::string_view body);

// The body of /detokenize, which is vLLM's, too.
struct LlamaDetokenize {
  std::string model;            // empty: the only one
  std::vector<int32_t> tokens;  // may be empty
};
absl::StatusOr<LlamaDetokenize> ParseLlamaDetokenize(absl::string_view body);

// The body of /embedding: "content" or "input".
absl::StatusOr<EmbeddingRequest> ParseLlamaEmbedding(absl::string_view body);

// JSON of the settings that a request is generated with, but for the model's "n_ctx".
std::string LlamaSettingsJson(const LlamaCompletion& completion);

}  // namespace strata
