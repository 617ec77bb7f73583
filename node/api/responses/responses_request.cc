#include "node/api/responses/responses_request.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "node/api/answer_format.h"
#include "node/api/field_reader.h"
#include "node/api/json_body.h"
#include "node/api/openai/openai_thinking.h"
#include "node/api/responses/responses_input.h"
#include "node/api/sampler_fields.h"

namespace strata {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMetadataMax = 16;
// A stream repeats these members in three events, and its client may be only so far behind.
constexpr size_t kEchoBytesMax = 128 * 1024;

absl::Status CheckUnsupported(FieldReader* fields) {
  for (const char* name : {"conversation", "prompt", "context_management"}) {
    const Json* field = fields->Find(name);
    if (field != nullptr && !(field->is_structured() && field->empty())) {
      return UnsupportedParam(name);
    }
  }
  if (fields->Bool("background").value_or(false)) return UnsupportedParam("background");
  if (fields->Integer("top_logprobs", {0, kApiTopLogprobsMax}).value_or(0) > 0) {
    return UnsupportedParam("top_logprobs");
  }
  const Json* include = fields->Find("include");
  if (include != nullptr && !include->is_array()) {
    return BadParam("include", "must be an array of strings");
  }
  // The others are of items that no response has.
  for (const Json& each : include != nullptr ? *include : Json::array()) {
    if (each == "message.output_text.logprobs") {
      return UnsupportedParam("include", "of message.output_text.logprobs");
    }
  }
  const auto truncation = fields->Text("truncation");
  if (truncation && *truncation != "auto" && *truncation != "disabled") {
    return BadParam("truncation", R"(must be "auto" or "disabled")");
  }
  return absl::OkStatus();
}

OrderedJson PlainText() { return {{"format", {{"type", "text"}}}, {"verbosity", "medium"}}; }

absl::Status ReadText(const Json& json, absl::string_view body, ApiRequest* request,
                      OrderedJson* echo) {
  OrderedJson& text = (*echo)["text"];
  text = PlainText();
  const Json* given = Member(json, "text");
  if (given == nullptr) return absl::OkStatus();
  if (!given->is_object()) return BadParam("text", "must be an object");
  if (const std::string* verbosity = TextMember(*given, "verbosity")) {
    text["verbosity"] = *verbosity;
  }
  if (Member(*given, "format") == nullptr) return absl::OkStatus();
  AnswerFormat answer(body, request);
  const auto ordered = answer.Ordered("text");
  if (!ordered.ok()) return ordered.status();
  const auto found = ordered->find("format");
  if (Json::parse(ordered->dump()) != *given || found == ordered->end()) {
    return BadParam("text", "is given more than once");
  }
  const std::string* type = TextMember((*given)["format"], "type");
  if (type == nullptr || (*type != "text" && *type != "json_object" && *type != "json_schema")) {
    return BadParam("text.format.type", R"(must be "text", "json_object" or "json_schema")");
  }
  text["format"] = *found;
  if (*type == "text") return absl::OkStatus();
  if (*type == "json_object") return answer.AnyJson("text.format");
  const auto schema = found->find("schema");
  if (schema == found->end() || !schema->is_object()) {
    return BadParam("text.format.schema", "must be an object");
  }
  if (const Json* strict = Member((*given)["format"], "strict")) {
    if (!strict->is_boolean()) return BadParam("text.format.strict", "must be true or false");
    answer.set_strict(strict->get<bool>());
  }
  return answer.Schema(*schema, "text.format.schema");
}

absl::Status ReadMetadata(const Json& json, OrderedJson* echo) {
  (*echo)["metadata"] = OrderedJson::object();
  const Json* metadata = Member(json, "metadata");
  if (metadata == nullptr) return absl::OkStatus();
  if (!metadata->is_object() || metadata->size() > kMetadataMax) {
    return BadParam("metadata",
                    absl::StrCat("must be an object of at most ", kMetadataMax, " members"));
  }
  for (const auto& [key, value] : metadata->items()) {
    if (!value.is_string()) return BadParam("metadata." + key, "must be a string");
  }
  (*echo)["metadata"] = *metadata;
  return absl::OkStatus();
}

// Members that clients expect in a response, beside those of tools, text and metadata.
void Echo(const Json& json, const ResponsesRequest& request, OrderedJson* echo) {
  for (const char* name :
       {"instructions", "max_output_tokens", "max_tool_calls", "previous_response_id",
        "prompt_cache_key", "safety_identifier", "user"}) {
    const Json* field = Member(json, name);
    (*echo)[name] = field != nullptr ? OrderedJson(*field) : OrderedJson();
  }
  OrderedJson& reasoning = (*echo)["reasoning"];
  reasoning = {{"effort", nullptr}, {"summary", nullptr}};
  if (const Json* given = Member(json, "reasoning"); given != nullptr && given->is_object()) {
    for (const char* name : {"effort", "summary"}) {
      if (const Json* field = Member(*given, name)) reasoning[name] = *field;
    }
  }
  (*echo)["service_tier"] = "default";
  (*echo)["store"] = request.store;
  (*echo)["temperature"] = request.api.sampler.temperature();
  (*echo)["top_p"] = request.api.sampler.top_p();
  (*echo)["top_logprobs"] = 0;
  (*echo)["truncation"] = "disabled";  // whatever was asked for: nothing is left out
}

// Members for which there is no room get the value that they have by default.
void BoundEcho(OrderedJson* echo) {
  size_t bytes = 0;
  for (auto& [name, value] : echo->items()) {
    bytes += value.dump().size();
    if (bytes <= kEchoBytesMax) continue;
    bytes -= value.dump().size();
    if (name == "text") {
      value = PlainText();
    } else if (name == "tool_choice") {
      value = "auto";
    } else if (value.is_structured()) {
      value.clear();
    } else if (value.is_string()) {
      value = nullptr;
    }
  }
}

// Reads the items of a request; those that it only names come from the store.
class InputReader {
 public:
  InputReader(const std::string& client, ResponseStore* store, ResponsesRequest* request)
      : client_(client), store_(store), request_(request), messages_(&request->api.messages) {}

  absl::Status AddEarlier(const std::string& id) {
    const auto earlier = store_->Find(client_, id);
    if (earlier == nullptr) {
      return WithErrorCode(
          BadParam("previous_response_id", absl::StrCat("there is no response with the id \"", id,
                                                        "\", or it is no longer stored")),
          "previous_response_not_found");
    }
    named_bytes_ = earlier->input.size() + earlier->output.size();
    for (const std::string* text : {&earlier->input, &earlier->output}) {
      for (const Json& item : Json::parse(*text)) {
        absl::Status status = Add(item, "previous_response_id");
        if (!status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddInput(const Json& input) {
    if (input.is_string()) {
      return Add(NormalItem({{"role", "user"}, {"content", input}}), "input");
    }
    if (!input.is_array()) return BadParam("input", "must be a string or an array of items");
    for (size_t i = 0; i < input.size(); ++i) {
      const std::string path = absl::StrCat("input[", i, "]");
      absl::Status status;
      if (IsReference(input[i])) {
        status = AddReferred(input[i], path);
      } else {
        status = Add(NormalItem(input[i]), path);
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  static bool IsReference(const Json& item) {
    const std::string* type = TextMember(item, "type");
    if (type != nullptr) return *type == "item_reference";
    return item.is_object() && item.contains("id") && !item.contains("role");
  }

  absl::Status Add(Json item, const std::string& path) {
    if (request_->items.size() >= kApiMessagesMax) {
      return BadParam("input", absl::StrCat("must be at most ", kApiMessagesMax,
                                            " items, with those of earlier responses"));
    }
    if (absl::Status status = messages_.Add(item, path); !status.ok()) return status;
    request_->items.push_back(std::move(item));
    return absl::OkStatus();
  }

  absl::Status AddReferred(const Json& reference, const std::string& path) {
    const std::string* id = TextMember(reference, "id");
    if (id == nullptr) return BadParam(path + ".id", "must be a string");
    const Json* item = ItemIn(request_->items, *id);
    const auto response = item == nullptr ? store_->FindByItem(client_, *id) : nullptr;
    if (response != nullptr) {
      Json& output = outputs_[response];  // parsed once
      if (output.is_null()) output = Json::parse(response->output);
      item = ItemIn(output, *id);
    }
    if (item == nullptr) {
      return BadParam(path + ".id",
                      absl::StrCat("there is no item \"", *id, "\", or it is no longer stored"));
    }
    // A short request may name long items many times.
    named_bytes_ += item->dump().size();
    if (named_bytes_ > kApiPromptBytesMax) {
      return BadParam("input", absl::StrCat("is too long: with the items that it names it exceeds ",
                                            kApiPromptBytesMax >> 20, " MiB"));
    }
    return Add(*item, path);
  }

  // Null: it is not in them.
  static const Json* ItemIn(const Json& items, const std::string& id) {
    for (const Json& item : items) {
      const std::string* own = TextMember(item, "id");
      if (own != nullptr && *own == id) return &item;
    }
    return nullptr;
  }

  const std::string& client_;
  ResponseStore* const store_;
  ResponsesRequest* const request_;
  ItemReader messages_;
  std::map<std::shared_ptr<const StoredResponse>, Json> outputs_;  // shared with the store
  uint64_t named_bytes_ = 0;
};

absl::Status ReadItems(FieldReader* fields, const std::string& client, ResponseStore* store,
                       ResponsesRequest* request) {
  InputReader reader(client, store, request);
  if (const auto id = fields->Text("previous_response_id")) {
    if (absl::Status status = reader.AddEarlier(*id); !status.ok()) return status;
  }
  const Json* input = fields->Find("input");
  return input == nullptr ? absl::OkStatus() : reader.AddInput(*input);
}

}  // namespace

absl::StatusOr<ResponsesRequest> ParseResponses(absl::string_view text, const std::string& client,
                                                ResponseStore* store) {
  const auto body = JsonBody::Parse(text);
  if (!body.ok()) return body.status();
  const Json& json = body->json();
  FieldReader fields(json);
  ResponsesRequest request;
  ApiRequest& api = request.api;
  api.chat = true;
  fields.Fail(CheckUnsupported(&fields));
  api.model = fields.Text("model").value_or("");
  api.stream = fields.Bool("stream").value_or(false);
  request.store = fields.Bool("store").value_or(true);
  if (const auto tokens = fields.Integer("max_output_tokens", {1, kApiOutputTokensMax})) {
    api.tokens_max = static_cast<uint32_t>(*tokens);
  }
  ReadSampler(&fields, &api.sampler);
  ReadCacheUse(&fields, &api);
  ReadStops(&fields, &api.stops);
  const auto instructions = fields.Text("instructions");
  if (instructions && !instructions->empty()) {
    api.messages.push_back({.role = "system", .content = *instructions});
  }
  OrderedJson echo;
  if (fields.status().ok()) fields.Fail(ReadText(json, body->text(), &api, &echo));
  if (fields.status().ok()) {
    fields.Fail(ReadResponsesTools(json, body->text(), &api, &request.renamed, &echo));
  }
  if (fields.status().ok()) fields.Fail(ReadMetadata(json, &echo));
  if (fields.status().ok()) fields.Fail(ReadThinking(json, &api));
  if (fields.status().ok()) fields.Fail(ReadItems(&fields, client, store, &request));
  if (fields.status().ok() && request.items.empty()) fields.Wrong("input", "is missing");
  if (!fields.status().ok()) return fields.status();
  if (api.messages.empty()) return BadParam("input", "has no message");
  Echo(json, request, &echo);
  BoundEcho(&echo);
  request.echo = std::move(echo);
  return request;
}

}  // namespace strata
