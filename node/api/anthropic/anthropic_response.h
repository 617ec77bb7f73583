// Responses in Anthropic's form, whole and as events of a stream
// (https://platform.claude.com/docs/en/build-with-claude/streaming). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "node/api/api_response.h"
#include "proto/coordinator.pb.h"

namespace strata {

// Responses to /v1/messages: a thought, the text and the calls are blocks of content.
class AnthropicWriter final : public ResponseWriter {
 public:
  struct Answer {
    std::string id;  // "msg_…"
    std::string model;
    std::string request_id;
  };
  explicit AnthropicWriter(Answer answer) : answer_(std::move(answer)) {}

  HttpResponse Begin(const std::vector<ApiPiece>& firsts, const ApiUsage& usage) override;
  std::string Piece(const ApiPiece& piece) override;
  std::string End(const ApiUsage& usage) override;
  std::string Failure(const absl::Status& status) override;
  HttpResponse Whole(const std::vector<ApiPiece>& choices, const ApiUsage& usage) override;
  HttpResponse Error(const absl::Status& status) override;

 private:
  enum class Block { kNone, kThought, kText, kCall };
  // Ends the open block unless it is of this kind, and begins one. `call`: the call's first piece.
  void Open(Block block, const ApiCallPiece* call, std::string* events);
  void Close(std::string* events);

  const Answer answer_;
  // Of a stream.
  Block open_ = Block::kNone;
  size_t index_ = 0;  // of the open block, or of the next one
  ApiPiece last_;     // says why the message ends
};

// GET /v1/models and /v1/models/ID.
std::string AnthropicModelsJson(const std::vector<wire::ModelStatus>& models, int64_t now_s);
std::string AnthropicModelJson(const wire::ModelStatus& model, int64_t now_s);

}  // namespace strata
