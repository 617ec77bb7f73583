// Responses in the forms of llama-server's own API
// (https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md), whole and as events
// of a stream. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "node/api/api_response.h"
#include "proto/coordinator.pb.h"

namespace strata {

// Responses to /completion. REQUIRES: pieces have their tokens (ApiRequest::logprobs).
class LlamaWriter final : public ResponseWriter {
 public:
  struct Answer {
    std::string model;
    uint32_t n_ctx = 0;    // of the model
    size_t n_choices = 1;  // prompts × n
    bool is_list = false;  // the whole response is an array
    bool return_tokens = false;
    uint32_t n_probs = 0;            // 0: no probabilities
    bool timings_in_pieces = false;  // ApiRequest's
    std::string settings_json;       // "generation_settings", without "n_ctx"
  };
  explicit LlamaWriter(Answer answer) : answer_(std::move(answer)), choices_(answer_.n_choices) {}

  HttpResponse Begin(const std::vector<ApiPiece>& firsts, const ApiUsage& usage) override;
  std::string Progress(const ApiProgress& progress) override;
  std::string Piece(const ApiPiece& piece) override;
  std::string End(const ApiUsage& usage) override;
  std::string Failure(const absl::Status& status) override;
  HttpResponse Whole(const std::vector<ApiPiece>& choices, const ApiUsage& usage) override;
  HttpResponse Error(const absl::Status& status) override;

 private:
  struct Choice {
    std::string finish_reason, stop_string;
    uint64_t tokens = 0;
    bool has_new_line = false;
  };
  void Count(const ApiPiece& piece);
  // JSON's text of the choice's last event, or of its whole response: that of `whole`.
  std::string Final(size_t index, const ApiPiece* whole, const ApiUsage& usage) const;

  const Answer answer_;
  std::vector<Choice> choices_;
};

// The answer to /embedding: each vector in an array, for there llama-server has one for each token
// where it does not pool.
std::string LlamaEmbeddingJson(const ApiEmbeddings& embeddings);

// GET /slots.
std::string LlamaSlotsJson(const wire::ModelStatus& model);

// GET /props.
std::string LlamaPropsJson(const wire::ModelStatus& model);

}  // namespace strata
