// Answers to /api/chat and /api/generate in Ollama's form, as lines of JSON or whole.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "node/api/api_response.h"

namespace strata {

// The content type of a stream.
inline constexpr char kOllamaStreamType[] = "application/x-ndjson";
// The head of a stream.
HttpResponse OllamaStream();
// A line of a stream of either kind that adds nothing to its output.
std::string OllamaNothing(absl::string_view model);

// A tool call is told once it is complete, its arguments as an object; one that the limit of tokens
// cut is not.
class OllamaWriter final : public ResponseWriter {
 public:
  // `model`: its shown name. `chat`: of /api/chat.
  OllamaWriter(std::string model, bool chat) : model_(std::move(model)), chat_(chat) {}

  HttpResponse Begin(const std::vector<ApiPiece>& firsts, const ApiUsage& usage) override;
  std::string Piece(const ApiPiece& piece) override;
  std::string End(const ApiUsage& usage) override;
  std::string Failure(const absl::Status& status) override;
  HttpResponse Whole(const std::vector<ApiPiece>& choices, const ApiUsage& usage) override;
  HttpResponse Error(const absl::Status& status) override;

 private:
  const std::string model_;
  const bool chat_;
  ApiCallPiece call_;     // as far as it came; without a name: there is none
  std::string finished_;  // the finish reason
};

// Answers to /api/embed and /api/embeddings. `took`: since the request came.
std::string OllamaEmbed(const std::string& model, const ApiEmbeddings& embeddings,
                        absl::Duration took);
std::string OllamaEmbeddings(const ApiEmbeddings& embeddings);

// The answer to a request without a prompt: `model` is loaded, or goes.
std::string OllamaLoaded(const std::string& model, bool chat, bool unloads = false);

}  // namespace strata
