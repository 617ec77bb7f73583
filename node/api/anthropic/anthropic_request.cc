#include "node/api/anthropic/anthropic_request.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"
#include "node/api/answer_format.h"
#include "node/api/anthropic/anthropic_messages.h"
#include "node/api/field_reader.h"
#include "node/api/json_body.h"
#include "node/api/openai/openai_thinking.h"
#include "node/api/sampler_fields.h"
#include "node/api/tool_fields.h"

namespace strata {
namespace {

using Json = nlohmann::json;

absl::Status ReadTools(const Json& json, absl::string_view body, ChatTools* tools) {
  const auto list = ReadToolList(json, body, "tools");
  if (!list.ok()) return list.status();
  for (size_t i = 0; i < list->size(); ++i) {
    const SchemaJson& tool = (*list)[i];
    const std::string path = absl::StrCat("tools.", i);
    if (!tool.is_object()) return BadParam(path, "must be an object");
    // Others are Anthropic's own: its servers run them, or its models know their schemas.
    if (const SchemaJson* type = Member(tool, "type"); type != nullptr && *type != "custom") {
      if (!type->is_string()) return BadParam(path + ".type", "must be a string");
      return UnsupportedParam(path + ".type", type->get_ref<const std::string&>());
    }
    absl::Status status = AddTool({.name = Keyword(tool, "name"),
                                   .description = Keyword(tool, "description"),
                                   .parameters = Keyword(tool, "input_schema"),
                                   .strict = Keyword(tool, "strict"),
                                   .path = path,
                                   .parameters_name = "input_schema"},
                                  tools);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ReadChoice(const Json& choice, ChatTools* tools) {
  const std::string* type = TextMember(choice, "type");
  if (type == nullptr ||
      (*type != "auto" && *type != "any" && *type != "none" && *type != "tool")) {
    return BadParam("tool_choice.type", "must be auto, any, tool or none");
  }
  if (*type == "tool" && TextMember(choice, "name") == nullptr) {
    return BadParam("tool_choice.name", "is missing");
  }
  if (const Json* one = Member(choice, "disable_parallel_tool_use"); one != nullptr) {
    if (!one->is_boolean()) {
      return BadParam("tool_choice.disable_parallel_tool_use", "must be true or false");
    }
    tools->parallel = !one->get<bool>();
  }
  return ReadToolChoice(choice, tools);
}

// {"type":"json_schema","schema":{…}}
absl::Status ReadFormat(const SchemaJson& format, const std::string& path, AnswerFormat* answer) {
  const auto type = format.is_object() ? format.find("type") : format.end();
  if (type == format.end() || *type != "json_schema") {
    return BadParam(path + ".type", R"(must be "json_schema")");
  }
  const auto schema = format.find("schema");
  if (schema == format.end() || !schema->is_object()) {
    return BadParam(path + ".schema", "must be an object");
  }
  answer->set_strict(true);
  return answer->Schema(*schema, path + ".schema");
}

// "output_config" and its older form, "output_format".
absl::Status ReadFormats(const Json& json, absl::string_view body, ApiRequest* request) {
  AnswerFormat answer(body, request);
  if (const Json* old = Member(json, "output_format"); old != nullptr) {
    const auto format = answer.Ordered("output_format");
    if (!format.ok()) return format.status();
    absl::Status status = ReadFormat(*format, "output_format", &answer);
    if (!status.ok()) return status;
  }
  const Json* config = Member(json, "output_config");
  if (config == nullptr) return absl::OkStatus();
  if (!config->is_object()) return BadParam("output_config", "must be an object");
  if (Member(*config, "format") == nullptr) return absl::OkStatus();
  const auto ordered = answer.Ordered("output_config");
  if (!ordered.ok()) return ordered.status();
  const auto format = ordered->is_object() ? ordered->find("format") : ordered->end();
  if (format == ordered->end()) return BadParam("output_config", "is given more than once");
  return ReadFormat(*format, "output_config.format", &answer);
}

absl::Status ReadThoughts(const Json& json, ApiRequest* request) {
  Json thinking = Json::object();
  if (const Json* field = Member(json, "thinking"); field != nullptr) {
    if (!field->is_object()) return BadParam("thinking", "must be an object");
    thinking["thinking"] = *field;
    const std::string* display = TextMember(*field, "display");
    request->shows_thoughts = display == nullptr || *display != "omitted";
  }
  const Json* config = Member(json, "output_config");
  const Json* effort = config == nullptr ? nullptr : Member(*config, "effort");
  if (effort != nullptr) {
    constexpr const char* kEfforts[] = {"low", "medium", "high", "xhigh", "max"};
    if (std::none_of(std::begin(kEfforts), std::end(kEfforts),
                     [effort](const char* each) { return *effort == each; })) {
      return BadParam("output_config.effort", "must be low, medium, high, xhigh or max");
    }
    thinking["reasoning_effort"] = *effort;
  }
  return ReadThinking(thinking, request);
}

}  // namespace

absl::StatusOr<ApiRequest> ParseAnthropicMessages(absl::string_view text) {
  const auto body = JsonBody::Parse(text);
  if (!body.ok()) return body.status();
  const Json& json = body->json();
  FieldReader fields(json);
  ApiRequest request;
  request.chat = true;
  request.model = fields.Text("model").value_or("");
  request.stream = fields.Bool("stream").value_or(false);
  if (const auto tokens = fields.Integer("max_tokens", {0, kApiOutputTokensMax})) {
    request.tokens_max = static_cast<uint32_t>(*tokens);
  }
  ReadSampler(&fields, &request.sampler);
  ReadCacheUse(&fields, &request);
  ReadStops(&fields, &request.stops, "stop_sequences");
  if (const Json* servers = fields.Find("mcp_servers"); servers != nullptr && !servers->empty()) {
    fields.Fail(UnsupportedParam("mcp_servers"));
  }
  if (!fields.status().ok()) return fields.status();
  absl::Status status = ReadFormats(json, body->text(), &request);
  if (status.ok()) status = ReadTools(json, body->text(), &request.tools);
  if (const Json* choice = fields.Find("tool_choice"); status.ok() && choice != nullptr) {
    status = ReadChoice(*choice, &request.tools);
  }
  if (status.ok()) status = ReadThoughts(json, &request);
  if (status.ok()) status = ReadAnthropicMessages(json, body->text(), &request);
  if (!status.ok()) return status;
  return request;
}

}  // namespace strata
