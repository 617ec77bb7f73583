#include "node/api/openai/openai_embeddings.h"

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"
#include "node/api/json_body.h"

namespace strata {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

std::string Base64Of(const std::vector<float>& vector) {
  std::string bytes;
  bytes.reserve(vector.size() * sizeof(float));
  for (const float value : vector) {
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(bits >> shift & 0xff);
  }
  return absl::Base64Escape(bytes);
}

absl::Status ReadInputs(const Json& json, const std::string& name, EmbeddingRequest* request) {
  const bool several = json.is_array() && (json.empty() || !json[0].is_number());
  const std::vector<const Json*> inputs = ListOf(json, several);
  if (inputs.empty() || inputs.size() > kApiInputsMax) {
    return BadParam(name, absl::StrCat("must have 1 to ", kApiInputsMax, " inputs"));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string path = several ? absl::StrCat(name, "[", i, "]") : name;
    ApiPrompt& input = request->inputs.emplace_back();
    if (inputs[i]->is_string()) {
      input.text = inputs[i]->get<std::string>();
      if (input.text.empty()) return BadParam(path, "must not be empty");
    } else if (auto tokens = TokensOf(*inputs[i])) {
      input.tokens = *std::move(tokens);
    } else {
      return BadParam(path, "must be a string or an array of tokens");
    }
  }
  return absl::OkStatus();
}

}  // namespace

void ReadEmbeddingInputs(const char* name, FieldReader* fields, EmbeddingRequest* request) {
  const Json* input = fields->Find(name);
  if (input == nullptr) fields->Wrong(name, "is missing");
  if (fields->status().ok()) fields->Fail(ReadInputs(*input, name, request));
}

absl::StatusOr<EmbeddingRequest> ParseEmbeddings(absl::string_view text) {
  const auto body = JsonBody::Parse(text);
  if (!body.ok()) return body.status();
  FieldReader fields(body->json());
  EmbeddingRequest request;
  request.model = fields.Text("model").value_or("");
  if (const auto dimensions = fields.Integer("dimensions", {1, 1 << 20})) {
    request.dimensions = static_cast<uint32_t>(*dimensions);
  }
  request.truncates = fields.Bool("truncate").value_or(false);  // text-embeddings-inference's
  const std::string format = fields.Text("encoding_format").value_or("float");
  if (format != "float" && format != "base64") {
    fields.Wrong("encoding_format", "must be float or base64");
  }
  request.is_base64 = format == "base64";
  ReadEmbeddingInputs("input", &fields, &request);
  if (!fields.status().ok()) return fields.status();
  return request;
}

std::string EmbeddingsJson(const std::string& model, bool is_base64,
                           const ApiEmbeddings& embeddings) {
  OrderedJson data = OrderedJson::array();
  for (const std::vector<float>& vector : embeddings.vectors) {
    OrderedJson one = {{"object", "embedding"}, {"index", data.size()}};
    if (is_base64) {
      one["embedding"] = Base64Of(vector);
    } else {
      one["embedding"] = FloatsJson(vector);
    }
    data.push_back(std::move(one));
  }
  const uint64_t tokens = embeddings.prompt_tokens;
  return JsonText({{"object", "list"},
                   {"data", std::move(data)},
                   {"model", model},
                   {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}});
}

}  // namespace strata
