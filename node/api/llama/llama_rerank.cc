#include "node/api/llama/llama_rerank.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"
#include "node/api/field_reader.h"
#include "node/api/json_body.h"

namespace strata {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

absl::Status ReadDocuments(const Json& json, const char* name, RankRequest* request) {
  if (!json.is_array() || json.empty() || json.size() > kApiInputsMax) {
    return BadParam(name, absl::StrCat("must be an array of 1 to ", kApiInputsMax, " strings"));
  }
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string* text =
        json[i].is_string() ? json[i].get_ptr<const std::string*>() : TextMember(json[i], "text");
    if (text == nullptr) {
      return BadParam(absl::StrCat(name, "[", i, "]"),
                      "must be a string or an object with a \"text\"");
    }
    request->documents.push_back(*text);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LlamaRerank> ParseLlamaRerank(absl::string_view text) {
  const auto body = JsonBody::Parse(text);
  if (!body.ok()) return body.status();
  FieldReader fields(body->json());
  LlamaRerank rerank;
  rerank.request.model = fields.Text("model").value_or("");
  rerank.request.query = fields.Text("query").value_or("");
  rerank.request.instruction = fields.Text("instruction").value_or("");
  if (rerank.request.query.empty()) fields.Wrong("query", "must be a string that is not empty");
  const Json* documents = fields.Find("documents");
  const Json* texts = fields.Find("texts");
  rerank.has_texts = documents == nullptr && texts != nullptr;
  const char* name = rerank.has_texts ? "texts" : "documents";
  if (rerank.has_texts) documents = texts;
  if (documents == nullptr) fields.Wrong(name, "is missing");
  rerank.returns_text =
      fields.Bool(rerank.has_texts ? "return_text" : "return_documents").value_or(false);
  const auto n_top = fields.Integer("top_n", {1, 1 << 20});
  if (fields.status().ok()) fields.Fail(ReadDocuments(*documents, name, &rerank.request));
  if (!fields.status().ok()) return fields.status();
  const size_t n = rerank.request.documents.size();
  rerank.n_top = n_top ? std::min(n, static_cast<size_t>(*n_top)) : n;
  return rerank;
}

std::string LlamaRerankJson(const std::string& model, const LlamaRerank& rerank,
                            const ApiScores& scores) {
  std::vector<size_t> order(scores.scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores.scores[a] > scores.scores[b]; });
  order.resize(std::min(order.size(), rerank.n_top));
  OrderedJson results = OrderedJson::array();
  for (const size_t index : order) {
    OrderedJson result = {{"index", index}};
    result[rerank.has_texts ? "score" : "relevance_score"] = scores.scores[index];
    const std::string& text = rerank.request.documents[index];
    if (rerank.returns_text && rerank.has_texts) {
      result["text"] = text;
    } else if (rerank.returns_text) {
      result["document"] = {{"text", text}};
    }
    results.push_back(std::move(result));
  }
  if (rerank.has_texts) return JsonText(results);
  const uint64_t tokens = scores.prompt_tokens;
  return JsonText({{"model", model},
                   {"object", "list"},
                   {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}},
                   {"results", std::move(results)}});
}

}  // namespace strata
