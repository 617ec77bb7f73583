// Responses in OpenAI's forms, whole and as events of a stream. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "node/api/api_request.h"
#include "node/api/api_response.h"
#include "node/chat/template_check.h"
#include "proto/coordinator.pb.h"

namespace strata {

// The members that every event of one response repeats.
struct ApiAnswer {
  bool chat = false;
  std::string id;         // "chatcmpl-…" or "cmpl-…"
  int64_t created_s = 0;  // since 1970
  std::string model;
  bool calls_functions = false;  // ApiRequest's
  enum class Usage { kNone, kAtEnd, kInPieces };
  Usage usage = Usage::kNone;      // of a stream
  bool timings_in_pieces = false;  // ApiRequest's
  // Likeliest tokens that are shown at each place of the output, and of the prompt.
  uint32_t top_logprobs = kApiTopLogprobsMax, prompt_top = 0;
  bool returns_tokens = false, tokens_as_ids = false;  // ApiRequest's
};

// Responses to /v1/completions and /v1/chat/completions.
class OpenAiWriter final : public ResponseWriter {
 public:
  explicit OpenAiWriter(ApiAnswer answer) : answer_(std::move(answer)) {}

  HttpResponse Begin(const std::vector<ApiPiece>& firsts, const ApiUsage& usage) override;
  std::string Progress(const ApiProgress& progress) override;
  std::string Piece(const ApiPiece& piece) override;
  std::string End(const ApiUsage& usage) override;
  std::string Failure(const absl::Status& status) override;
  HttpResponse Whole(const std::vector<ApiPiece>& choices, const ApiUsage& usage) override;
  HttpResponse Error(const absl::Status& status) override;

 private:
  const ApiAnswer answer_;
};

// llama-server's "prompt_progress".
nlohmann::ordered_json PromptProgressJson(const ApiProgress& progress);

// One event of a stream: "data: {…}\n\n". Where usage comes at the end, every piece says
// "usage":null.
std::string PieceEvent(const ApiAnswer& answer, const ApiPiece& piece);
std::string UsageEvent(const ApiAnswer& answer, const ApiUsage& usage);

// The whole response, `choices` by index.
std::string WholeResponse(const ApiAnswer& answer, const std::vector<ApiPiece>& choices,
                          const ApiUsage& usage);

// GET /v1/models and /v1/models/ID.
// REQUIRES: `chat` has the state of each model's chat template, in order.
std::string ModelsJson(const std::vector<wire::ModelStatus>& models,
                       const std::vector<ChatSupport>& chat, int64_t now_s);
std::string ModelJson(const wire::ModelStatus& model, const ChatSupport& chat, int64_t now_s);

}  // namespace strata
