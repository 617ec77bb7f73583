#include "node/api/gemini/gemini_request.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"
#include "node/api/answer_format.h"
#include "node/api/field_reader.h"
#include "node/api/gemini/gemini_contents.h"
#include "node/api/gemini/gemini_fields.h"
#include "node/api/json_body.h"
#include "node/api/openai/openai_thinking.h"
#include "node/api/sampler_fields.h"
#include "node/api/tool_fields.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr char kConfigPath[] = "generationConfig.";
std::string InConfig(absl::string_view name) { return absl::StrCat(kConfigPath, name); }

// The fields with their only names, of values whose order does not matter.
Json PlainFields(const SchemaJson& json, std::initializer_list<const char*> names) {
  Json plain = Json::object();
  for (const char* name : names) {
    if (const SchemaJson* field = GeminiField(json, name)) plain[name] = Json(*field);
  }
  return plain;
}

absl::Status AddDeclaration(const SchemaJson& declaration, std::string path, ChatTools* tools) {
  if (!declaration.is_object()) return BadParam(path, "must be an object");
  const SchemaJson* own = Member(declaration, "parameters");
  const SchemaJson converted = own == nullptr ? SchemaJson() : GeminiSchema(*own);
  const SchemaJson* json_schema = GeminiField(declaration, "parametersJsonSchema");
  return AddTool(
      {.name = Member(declaration, "name"),
       .description = Member(declaration, "description"),
       .parameters = json_schema != nullptr ? json_schema : &converted,
       .path = std::move(path),
       .parameters_name = json_schema != nullptr ? "parametersJsonSchema" : "parameters"},
      tools);
}

absl::Status ReadGeminiTools(const SchemaJson& json, ChatTools* tools) {
  const SchemaJson* list = Member(json, "tools");
  if (list == nullptr) return absl::OkStatus();
  if (!list->is_array()) return BadParam("tools", "must be an array");
  for (size_t i = 0; i < list->size(); ++i) {
    const SchemaJson& tool = (*list)[i];
    const std::string path = absl::StrCat("tools[", i, "]");
    if (!tool.is_object()) return BadParam(path, "must be an object");
    // Others are run by Google's servers.
    for (const auto& [name, value] : tool.items()) {
      if (name != "functionDeclarations" && name != "function_declarations" && !value.is_null()) {
        return UnsupportedParam(absl::StrCat(path, ".", name));
      }
    }
    const SchemaJson* declarations = GeminiField(tool, "functionDeclarations");
    if (declarations == nullptr) continue;
    if (!declarations->is_array()) {
      return BadParam(path + ".functionDeclarations", "must be an array");
    }
    for (size_t j = 0; j < declarations->size(); ++j) {
      if (tools->list.size() >= kApiToolsMax) {
        return BadParam("tools", absl::StrCat("may declare at most ", kApiToolsMax, " functions"));
      }
      absl::Status status = AddDeclaration(
          (*declarations)[j], absl::StrCat(path, ".functionDeclarations[", j, "]"), tools);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status ReadGeminiToolConfig(const SchemaJson& json, ChatTools* tools) {
  const SchemaJson* config = GeminiField(json, "toolConfig");
  const SchemaJson* calling =
      config == nullptr ? nullptr : GeminiField(*config, "functionCallingConfig");
  if (calling == nullptr) return absl::OkStatus();
  const std::string path = "toolConfig.functionCallingConfig";
  const std::string* given = TextMember(*calling, "mode");
  const std::string mode = given == nullptr ? "AUTO" : absl::AsciiStrToUpper(*given);
  if (mode == "NONE") {
    tools->choice = ChatTools::Choice::kNone;
  } else if (mode == "ANY") {
    if (tools->list.empty()) return BadParam(path + ".mode", "is ANY, but no function is declared");
    tools->choice = ChatTools::Choice::kRequired;
  } else if (mode != "AUTO" && mode != "VALIDATED" && mode != "MODE_UNSPECIFIED") {
    return BadParam(path + ".mode", "must be AUTO, ANY, VALIDATED or NONE");
  }
  const SchemaJson* allowed = GeminiField(*calling, "allowedFunctionNames");
  if (allowed == nullptr || allowed->empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const SchemaJson& name : *allowed) {
    const auto* text = name.get_ptr<const std::string*>();
    const bool is_declared =
        text != nullptr && std::any_of(tools->list.begin(), tools->list.end(),
                                       [text](const ChatTool& tool) { return tool.name == *text; });
    if (!is_declared) {
      return BadParam(path + ".allowedFunctionNames", "must be names of declared functions");
    }
    names.push_back(*text);
  }
  std::erase_if(tools->list, [&names](const ChatTool& tool) {
    return std::find(names.begin(), names.end(), tool.name) == names.end();
  });
  return absl::OkStatus();
}

absl::Status ReadGeminiSampling(const SchemaJson& config, ApiRequest* request) {
  Json plain = PlainFields(config, {"temperature", "seed", "candidateCount", "maxOutputTokens",
                                    "stopSequences", "responseLogprobs", "logprobs"});
  // The sampler's fields have these names in Gemini's JSON, too.
  for (const auto& [from, to] : {std::pair{"topP", "top_p"},
                                 {"topK", "top_k"},
                                 {"presencePenalty", "presence_penalty"},
                                 {"frequencyPenalty", "frequency_penalty"}}) {
    if (const SchemaJson* field = GeminiField(config, from)) plain[to] = Json(*field);
  }
  FieldReader fields(plain, kConfigPath);
  ReadSampler(&fields, &request->sampler);
  ReadStops(&fields, &request->stops, "stopSequences");
  request->n = static_cast<uint32_t>(
      fields.Integer("candidateCount", {1, double{kApiChoicesMax}}).value_or(1));
  ReadTokensMax(&fields, {"maxOutputTokens"}, request);
  if (fields.Bool("responseLogprobs").value_or(false)) {
    const auto top = fields.Integer("logprobs", {0, kApiTopLogprobsMax});
    EnableLogprobs(request, static_cast<uint32_t>(top.value_or(0)));
  }
  return fields.status();
}

absl::Status ReadGeminiFormat(const SchemaJson& config, ApiRequest* request) {
  if (const SchemaJson* kinds = GeminiField(config, "responseModalities")) {
    for (const SchemaJson& kind : *kinds) {
      if (kind != "TEXT" && kind != "text") {
        return UnsupportedParam(InConfig("responseModalities"));
      }
    }
  }
  const SchemaJson* type = GeminiField(config, "responseMimeType");
  const SchemaJson* own = GeminiField(config, "responseSchema");
  const SchemaJson* json_schema = GeminiField(config, "responseJsonSchema");
  AnswerFormat answer(/*body=*/"", request);  // the schemas are in their order already
  if (type != nullptr && *type == "text/x.enum") {
    const SchemaJson* values = own == nullptr ? nullptr : Member(*own, "enum");
    return answer.Choice(values == nullptr ? Json() : Json(*values),
                         InConfig("responseSchema.enum"));
  }
  if (type != nullptr && *type != "application/json" && *type != "text/plain") {
    return UnsupportedParam(InConfig("responseMimeType"));
  }
  if (json_schema != nullptr) return answer.Schema(*json_schema, InConfig("responseJsonSchema"));
  if (own != nullptr) return answer.Schema(GeminiSchema(*own), InConfig("responseSchema"));
  const bool is_json = type != nullptr && *type == "application/json";
  return is_json ? answer.AnyJson(InConfig("responseMimeType")) : absl::OkStatus();
}

absl::Status ReadGeminiThoughts(const SchemaJson& config, ApiRequest* request) {
  request->shows_thoughts = false;
  const SchemaJson* thinking = GeminiField(config, "thinkingConfig");
  if (thinking == nullptr) return absl::OkStatus();
  const Json plain = PlainFields(*thinking, {"includeThoughts", "thinkingBudget", "thinkingLevel"});
  FieldReader fields(plain, InConfig("thinkingConfig."));
  request->shows_thoughts = fields.Bool("includeThoughts").value_or(false);
  Json meant = Json::object();
  if (const Json* budget = fields.Find("thinkingBudget")) meant["thinking_budget"] = *budget;
  if (const auto level = fields.Text("thinkingLevel"); level && *level != "") {
    meant["reasoning_effort"] = absl::AsciiStrToLower(*level);
  }
  return fields.status().ok() ? ReadThinking(meant, request) : fields.status();
}

absl::StatusOr<ApiRequest> GeminiRequestOf(const SchemaJson& json) {
  ApiRequest request;
  request.chat = true;
  if (GeminiField(json, "cachedContent") != nullptr) return UnsupportedParam("cachedContent");
  const SchemaJson* given = GeminiField(json, "generationConfig");
  if (given != nullptr && !given->is_object()) {
    return BadParam("generationConfig", "must be an object");
  }
  const SchemaJson config = given == nullptr ? SchemaJson::object() : *given;
  absl::Status status = ReadGeminiSampling(config, &request);
  if (status.ok()) status = ReadGeminiFormat(config, &request);
  if (status.ok()) status = ReadGeminiThoughts(config, &request);
  if (status.ok()) status = ReadGeminiTools(json, &request.tools);
  if (status.ok()) status = ReadGeminiToolConfig(json, &request.tools);
  if (status.ok()) status = ReadGeminiContents(json, &request.messages);
  if (!status.ok()) return status;
  return request;
}

// The body, an object, in the order of its members.
absl::StatusOr<SchemaJson> OrderedBody(absl::string_view text) {
  const auto body = JsonBody::Parse(text);
  if (!body.ok()) return body.status();
  return SchemaJson::parse(body->text(), nullptr, /*allow_exceptions=*/false);
}

absl::Status AddEmbedding(const SchemaJson& json, const std::string& path,
                          EmbeddingRequest* request) {
  const SchemaJson* content = json.is_object() ? Member(json, "content") : nullptr;
  if (content == nullptr) return BadParam(path + "content", "is missing");
  auto text = GeminiTextOf(*content, path + "content");
  if (!text.ok()) return text.status();
  if (text->empty()) return BadParam(path + "content", "is empty");
  request->inputs.push_back({.text = *std::move(text)});
  const Json plain = PlainFields(json, {"outputDimensionality"});
  FieldReader fields(plain, path);
  if (const auto size = fields.Integer("outputDimensionality", {1, double{1 << 20}})) {
    if (request->dimensions && *request->dimensions != static_cast<uint32_t>(*size)) {
      fields.Wrong("outputDimensionality", "must be the same in all requests");
    }
    request->dimensions = static_cast<uint32_t>(*size);
  }
  return fields.status();
}

}  // namespace

absl::StatusOr<ApiRequest> ParseGeminiGenerate(absl::string_view text) {
  const auto json = OrderedBody(text);
  return json.ok() ? GeminiRequestOf(*json) : json.status();
}

absl::StatusOr<ApiRequest> ParseGeminiCount(absl::string_view text) {
  const auto json = OrderedBody(text);
  if (!json.ok()) return json.status();
  const SchemaJson* whole = GeminiField(*json, "generateContentRequest");
  return GeminiRequestOf(whole == nullptr ? *json : *whole);
}

absl::StatusOr<EmbeddingRequest> ParseGeminiEmbed(absl::string_view text, bool is_batch) {
  const auto json = OrderedBody(text);
  if (!json.ok()) return json.status();
  EmbeddingRequest request;
  if (!is_batch) {
    absl::Status status = AddEmbedding(*json, "", &request);
    if (!status.ok()) return status;
    return request;
  }
  const SchemaJson* list = Member(*json, "requests");
  if (list == nullptr || !list->is_array() || list->empty() || list->size() > kApiInputsMax) {
    return BadParam("requests", absl::StrCat("must be an array of 1 to ", kApiInputsMax));
  }
  for (size_t i = 0; i < list->size(); ++i) {
    absl::Status status = AddEmbedding((*list)[i], absl::StrCat("requests[", i, "]."), &request);
    if (!status.ok()) return status;
  }
  return request;
}

}  // namespace strata
