// Responses in Gemini's form
// (https://ai.google.dev/api/generate-content#v1beta.GenerateContentResponse), whole and in pieces.
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "node/api/api_response.h"
#include "proto/coordinator.pb.h"

namespace strata {

// Responses to generateContent and streamGenerateContent.
class GeminiWriter final : public ResponseWriter {
 public:
  struct Answer {
    std::string id;
    std::string model;
    // Pieces of a stream are events; else the elements of one JSON array.
    bool has_events = true;
  };
  explicit GeminiWriter(Answer answer) : answer_(std::move(answer)) {}

  HttpResponse Begin(const std::vector<ApiPiece>& firsts, const ApiUsage& usage) override;
  std::string Piece(const ApiPiece& piece) override;
  std::string End(const ApiUsage& usage) override;
  std::string Failure(const absl::Status& status) override;
  HttpResponse Whole(const std::vector<ApiPiece>& choices, const ApiUsage& usage) override;
  HttpResponse Error(const absl::Status& status) override;

 private:
  std::string Element(const std::string& json);

  const Answer answer_;
  bool has_elements_ = false;  // of an array
  // Calls of each choice so far: a client gets them whole, with the choice's end.
  std::map<uint32_t, std::vector<ApiCallPiece>> calls_;
};

// GET /v1beta/models and /v1beta/models/ID.
std::string GeminiModelsJson(const std::vector<wire::ModelStatus>& models);
std::string GeminiModelJson(const wire::ModelStatus& model);

// Of embedContent, or of batchEmbedContents.
std::string GeminiEmbeddingsJson(const ApiEmbeddings& embeddings, bool is_batch);

}  // namespace strata
