// Requests and responses of the rerank API, in the form of Jina, which llama-server and vLLM have,
// and of Hugging Face's text-embeddings-inference, which names its documents "texts". Pure; no byte
// of a request is trusted. https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "node/api/api_request.h"
#include "node/api/api_response.h"

namespace strata {

struct LlamaRerank {
  RankRequest request;
  size_t n_top = 0;           // results to return, the best ones
  bool has_texts = false;     // the form of text-embeddings-inference
  bool returns_text = false;  // of each document
};

// kInvalidArgument: the field and what is wrong (request_status.h).
absl::StatusOr<LlamaRerank> ParseLlamaRerank(absl::string_view body);

// The best first. `model`: its name.
std::string LlamaRerankJson(const std::string& model, const LlamaRerank& rerank,
                            const ApiScores& scores);

}  // namespace strata
