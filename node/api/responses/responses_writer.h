// Responses in the form of OpenAI's Responses API, whole and as events of a stream
// (https://platform.openai.com/docs/api-reference/responses-streaming). Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "node/api/api_response.h"
#include "node/api/responses/response_store.h"
#include "node/api/responses/responses_tools.h"

namespace strata {

class ResponsesWriter final : public ResponseWriter {
 public:
  struct Options {
    std::string key;        // letters and digits of its own, which all ids in the response have
    int64_t created_s = 0;  // since 1970
    std::string model;
    nlohmann::ordered_json echo;
    std::vector<RenamedTool> renamed;
    // Gets the response once it is complete, without its input; may be null.
    std::function<void(const std::string& id, StoredResponse response)> on_end;
  };
  explicit ResponsesWriter(Options options) : options_(std::move(options)) {}

  HttpResponse Begin(const std::vector<ApiPiece>& firsts, const ApiUsage& usage) override;
  std::string Piece(const ApiPiece& piece) override;
  std::string End(const ApiUsage& usage) override;
  std::string Failure(const absl::Status& status) override;
  HttpResponse Whole(const std::vector<ApiPiece>& choices, const ApiUsage& usage) override;
  HttpResponse Error(const absl::Status& status) override;

 private:
  using Json = nlohmann::ordered_json;
  enum class Kind { kNone, kThought, kText, kCall, kCustomCall };

  std::string Event(const char* type, uint64_t sequence, Json members) const;
  std::string NextEvent(const char* type, Json members) {
    return Event(type, sequence_++, std::move(members));
  }
  std::string ItemEvent(const char* type, Json members);  // of the open item
  // Begins an item, and ends the one before.
  std::string Open(Kind kind);
  std::string OpenCall(const ApiCallPiece& call);
  std::string Add(Kind kind, const std::string& text);
  std::string AddArguments(const std::string& text);
  std::string Close(const char* status);
  Json Item(const char* status, bool begins = false) const;
  Json Part() const;
  std::string ItemId() const;
  Json Frame(const char* status) const;
  // The complete response, which on_end() gets.
  Json Complete(const ApiUsage& usage);

  const Options options_;
  uint64_t sequence_ = 2;  // Begin() has the first two events
  Json output_ = Json::array();
  bool is_cut_ = false;
  // The open item.
  Kind kind_ = Kind::kNone;
  std::string text_;  // or arguments
  std::string call_id_, name_, name_space_;
};

}  // namespace strata
