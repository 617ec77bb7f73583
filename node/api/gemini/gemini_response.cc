#include "node/api/gemini/gemini_response.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "node/api/gemini/gemini_error.h"
#include "node/api/json_body.h"
#include "node/api/server_sent_events.h"
#include "transport/base/utf8.h"

namespace strata {
namespace {

using OrderedJson = nlohmann::ordered_json;

// An object also where the output was cut.
OrderedJson ArgsOf(const std::string& arguments) {
  if (!ParseJsonObject(arguments).ok()) return OrderedJson::object();
  return OrderedJson::parse(arguments, nullptr, /*allow_exceptions=*/false);
}

OrderedJson PartsOf(const ApiPiece& piece, const std::vector<ApiCallPiece>& calls) {
  OrderedJson parts = OrderedJson::array();
  if (!piece.thought.empty()) parts.push_back({{"text", piece.thought}, {"thought", true}});
  if (!piece.text.empty()) parts.push_back({{"text", piece.text}});
  for (const ApiCallPiece& call : calls) {
    parts.push_back({{"functionCall",
                      {{"id", call.id}, {"name", call.name}, {"args", ArgsOf(call.arguments)}}}});
  }
  return parts;
}

OrderedJson LogprobOf(int32_t token, const std::string& piece, float logprob) {
  return {{"token", piece}, {"tokenId", token}, {"logProbability", logprob}};
}

void AddLogprobs(const ApiPiece& piece, OrderedJson* candidate) {
  if (!piece.logprobs || piece.tokens.empty()) return;
  OrderedJson chosen = OrderedJson::array(), tops = OrderedJson::array();
  double sum = 0;
  for (const wire::SampledToken& token : piece.tokens) {
    sum += token.logprob();
    chosen.push_back(LogprobOf(token.token(), token.piece(), token.logprob()));
    OrderedJson top = OrderedJson::array();
    for (const wire::TokenLogprob& other : token.top()) {
      top.push_back(LogprobOf(other.token(), other.piece(), other.logprob()));
    }
    tops.push_back({{"candidates", std::move(top)}});
  }
  (*candidate)["avgLogprobs"] = sum / static_cast<double>(piece.tokens.size());
  (*candidate)["logprobsResult"] = {{"topCandidates", std::move(tops)},
                                    {"chosenCandidates", std::move(chosen)}};
}

OrderedJson CandidateOf(const ApiPiece& piece, const std::vector<ApiCallPiece>& calls) {
  OrderedJson candidate = {{"content", {{"parts", PartsOf(piece, calls)}, {"role", "model"}}}};
  if (!piece.finish_reason.empty()) {
    candidate["finishReason"] = piece.finish_reason == "length" ? "MAX_TOKENS" : "STOP";
  }
  candidate["index"] = piece.index;
  AddLogprobs(piece, &candidate);
  return candidate;
}

OrderedJson UsageMetadata(const ApiUsage& usage) {
  const uint64_t thoughts = std::min(usage.reasoning_tokens, usage.completion_tokens);
  OrderedJson json = {{"promptTokenCount", usage.prompt_tokens},
                      {"candidatesTokenCount", usage.completion_tokens - thoughts},
                      {"totalTokenCount", usage.prompt_tokens + usage.completion_tokens}};
  if (usage.cached_tokens > 0) json["cachedContentTokenCount"] = usage.cached_tokens;
  if (thoughts > 0) json["thoughtsTokenCount"] = thoughts;
  return json;
}

std::string ResponseJson(const GeminiWriter::Answer& answer, OrderedJson candidates,
                         const ApiUsage& usage) {
  return JsonText({{"candidates", std::move(candidates)},
                   {"usageMetadata", UsageMetadata(usage)},
                   {"modelVersion", answer.model},
                   {"responseId", answer.id}});
}

OrderedJson GeminiModelOf(const wire::ModelStatus& model) {
  const std::string name = ValidUtf8(model.name());
  return {{"name", absl::StrCat("models/", name)},
          {"version", "1"},
          {"displayName", name},
          {"inputTokenLimit", model.n_ctx()},
          {"outputTokenLimit", model.n_ctx()},
          {"supportedGenerationMethods",
           {"generateContent", "countTokens", "embedContent", "batchEmbedContents"}}};
}

}  // namespace

HttpResponse GeminiWriter::Begin(const std::vector<ApiPiece>& /*firsts*/,
                                 const ApiUsage& /*usage*/) {
  if (answer_.has_events) return EventStream();
  return {.body = "[", .when_quiet = "\n"};
}

std::string GeminiWriter::Element(const std::string& json) {
  if (answer_.has_events) return ServerSentEvent(json);
  return absl::StrCat(std::exchange(has_elements_, true) ? ",\n" : "", json);
}

std::string GeminiWriter::Piece(const ApiPiece& piece) {
  std::vector<ApiCallPiece>& calls = calls_[piece.index];
  for (const ApiCallPiece& call : piece.calls) {
    if (!call.name.empty() || calls.empty()) {
      calls.push_back(call);
    } else {
      calls.back().arguments += call.arguments;
    }
  }
  const bool ends = !piece.finish_reason.empty();
  if (piece.text.empty() && piece.thought.empty() && piece.tokens.empty() && !ends) return "";
  OrderedJson candidate =
      CandidateOf(piece, ends ? std::exchange(calls, {}) : std::vector<ApiCallPiece>());
  return Element(ResponseJson(answer_, OrderedJson::array({std::move(candidate)}), piece.usage));
}

std::string GeminiWriter::End(const ApiUsage& /*usage*/) { return answer_.has_events ? "" : "]"; }

std::string GeminiWriter::Failure(const absl::Status& status) {
  return absl::StrCat(Element(GeminiError(ErrorOf(status))), answer_.has_events ? "" : "]");
}

HttpResponse GeminiWriter::Whole(const std::vector<ApiPiece>& choices, const ApiUsage& usage) {
  OrderedJson candidates = OrderedJson::array();
  for (const ApiPiece& piece : choices) candidates.push_back(CandidateOf(piece, piece.calls));
  return {.body = ResponseJson(answer_, std::move(candidates), usage)};
}

HttpResponse GeminiWriter::Error(const absl::Status& status) {
  return ErrorResponse(status, GeminiError);
}

std::string GeminiModelsJson(const std::vector<wire::ModelStatus>& models) {
  OrderedJson list = OrderedJson::array();
  for (const wire::ModelStatus& model : models) list.push_back(GeminiModelOf(model));
  return JsonText({{"models", std::move(list)}});
}

std::string GeminiModelJson(const wire::ModelStatus& model) {
  return JsonText(GeminiModelOf(model));
}

std::string GeminiEmbeddingsJson(const ApiEmbeddings& embeddings, bool is_batch) {
  OrderedJson list = OrderedJson::array();
  for (const std::vector<float>& vector : embeddings.vectors) {
    list.push_back({{"values", FloatsJson(vector)}});
  }
  return JsonText(is_batch ? OrderedJson{{"embeddings", std::move(list)}}
                           : OrderedJson{{"embedding", list.at(0)}});
}

}  // namespace strata
