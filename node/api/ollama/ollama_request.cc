#include "node/api/ollama/ollama_request.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"
#include "node/api/answer_format.h"
#include "node/api/field_reader.h"
#include "node/api/json_body.h"
#include "node/api/openai/openai_embeddings.h"
#include "node/api/openai/openai_thinking.h"
#include "node/api/openai/openai_tools.h"
#include "node/api/sampler_fields.h"
#include "node/api/tool_fields.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr double kWholeMax = std::numeric_limits<int32_t>::max();

// Sets `tokens_max` and the sampler from "options".
void ReadOptions(FieldReader* fields, ApiRequest* request) {
  // Where Ollama's defaults are not those of ReadSampler().
  Json options = {{"temperature", 0.8},
                  {"top_k", 40},
                  {"top_p", 0.9},
                  {"repeat_penalty", 1.1},
                  {"repeat_last_n", 64}};
  if (const Json* given = fields->Find("options"); given != nullptr) {
    if (!given->is_object()) return fields->Wrong("options", "must be an object");
    for (const auto& [name, value] : given->items()) {
      if (!value.is_null()) options[name] = value;
    }
  }
  // A negative one, the default, is random.
  if (const Json* seed = Member(options, "seed"); seed != nullptr && seed->is_number_integer() &&
                                                  !seed->is_number_unsigned() &&
                                                  seed->get<int64_t>() < 0) {
    options.erase("seed");
  }
  FieldReader reader(options, "options.");
  ReadSampler(&reader, &request->sampler);
  ReadStops(&reader, &request->stops);
  // Below 1: as far as the context goes.
  const int64_t tokens = reader.Integer("num_predict", {-2, kWholeMax}).value_or(-1);
  if (tokens > 0) request->tokens_max = static_cast<uint32_t>(tokens);
  const int64_t keep = reader.Integer("num_keep", {-1, kWholeMax}).value_or(4);
  request->keep_tokens = static_cast<uint32_t>(keep);  // -1: all
  // How a model is loaded, which a request does not decide here.
  for (const char* name : {"num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread"}) {
    reader.Integer(name, {-1, kWholeMax});
  }
  for (const char* name : {"numa", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mmap",
                           "use_mlock", "penalize_newline"}) {
    reader.Bool(name);
  }
  fields->Fail(reader.status());
}

// As wire::GenerateRequest has it: a negative time is forever, and zero ends with the request.
constexpr int64_t kForeverMs = 0, kNoTimeMs = 1;
int64_t KeepAliveMs(absl::Duration time) {
  if (time < absl::ZeroDuration()) return kForeverMs;
  return std::max(absl::ToInt64Milliseconds(time), kNoTimeMs);
}

// A number of seconds, or a time as "5m".
std::optional<int64_t> ReadKeepAlive(FieldReader* fields) {
  const Json* value = fields->Find("keep_alive");
  if (value == nullptr) return std::nullopt;
  absl::Duration time;
  double seconds = 0;
  if (value->is_number()) return KeepAliveMs(absl::Seconds(value->get<double>()));
  const auto* text = value->get_ptr<const std::string*>();
  if (text != nullptr && absl::SimpleAtod(*text, &seconds)) {
    return KeepAliveMs(absl::Seconds(seconds));
  }
  if (text != nullptr && absl::ParseDuration(*text, &time)) return KeepAliveMs(time);
  fields->Wrong("keep_alive", "must be a number of seconds, or a time as \"5m\"");
  return std::nullopt;
}

void ReadThink(FieldReader* fields, ApiRequest* request) {
  const Json* think = fields->Find("think");
  if (think != nullptr) fields->Fail(ReadThinking({{"think", *think}}, request));
}

void RefuseGiven(FieldReader* fields, const char* name, const std::string& path) {
  const Json* value = fields->Find(name);
  if (value == nullptr || *value == "" || *value == false || *value == 0) return;
  if (value->is_structured() && value->empty()) return;
  fields->Fail(UnsupportedParam(path));
}

void ReadCommon(FieldReader* fields, absl::string_view body, ApiRequest* request) {
  request->model = fields->Text("model").value_or("");
  request->stream = fields->Bool("stream").value_or(true);
  request->shift_context = fields->Bool("shift").value_or(false);
  ReadOptions(fields, request);
  AnswerFormat answer(body, request);
  fields->Fail(ReadFormat(fields->json(), &answer));
  for (const char* name : {"logprobs", "top_logprobs"}) RefuseGiven(fields, name, name);
}

absl::StatusOr<OllamaRequest> Finished(const FieldReader& fields, OllamaRequest parsed) {
  if (!fields.status().ok()) return fields.status();
  parsed.unloads = parsed.only_loads && parsed.request.keep_alive_ms == kNoTimeMs;
  return parsed;
}

absl::Status ReadMessage(const Json& json, const std::string& path, ChatMessage* message) {
  if (!json.is_object()) return BadParam(path, "must be an object with a role");
  FieldReader fields(json, path + ".");
  message->role = fields.Text("role").value_or("");
  if (message->role == "developer") message->role = "system";
  if (message->role != "system" && message->role != "user" && message->role != "assistant" &&
      message->role != "tool") {
    fields.Wrong("role", "must be system, user, assistant or tool");
  }
  message->content = fields.Text("content").value_or("");
  message->name = fields.Text("tool_name").value_or("");
  if (message->name.empty()) message->name = fields.Text("name").value_or("");
  const auto thinking = fields.Text("thinking");
  if (message->role == "assistant") message->reasoning = thinking.value_or("");
  RefuseGiven(&fields, "images", path + ".images");
  if (fields.status().ok()) fields.Fail(ReadCallsOf(json, path, message));
  return fields.status();
}

void ReadMessages(FieldReader* fields, ApiRequest* request) {
  const Json* messages = fields->Find("messages");
  if (messages == nullptr) return;
  if (!messages->is_array() || messages->size() > kApiMessagesMax) {
    return fields->Wrong(
        "messages", absl::StrCat("must be an array of at most ", kApiMessagesMax, " messages"));
  }
  for (size_t i = 0; i < messages->size() && fields->status().ok(); ++i) {
    fields->Fail(ReadMessage((*messages)[i], absl::StrCat("messages[", i, "]"),
                             &request->messages.emplace_back()));
  }
  if (fields->status().ok()) fields->Fail(MatchResults(&request->messages));
}

}  // namespace

absl::StatusOr<OllamaRequest> ParseOllamaChat(absl::string_view text) {
  const auto body = JsonBody::Parse(text);
  if (!body.ok()) return body.status();
  FieldReader fields(body->json());
  OllamaRequest parsed;
  ApiRequest& request = parsed.request;
  request.chat = true;
  ReadCommon(&fields, body->text(), &request);
  if (fields.status().ok()) fields.Fail(ReadTools(body->json(), body->text(), &request));
  ReadThink(&fields, &request);
  if (fields.status().ok()) ReadMessages(&fields, &request);
  parsed.only_loads = request.messages.empty();
  request.keep_alive_ms = ReadKeepAlive(&fields);
  return Finished(fields, std::move(parsed));
}

absl::StatusOr<OllamaRequest> ParseOllamaGenerate(absl::string_view text) {
  const auto body = JsonBody::Parse(text);
  if (!body.ok()) return body.status();
  FieldReader fields(body->json());
  OllamaRequest parsed;
  ApiRequest& request = parsed.request;
  ReadCommon(&fields, body->text(), &request);
  ReadThink(&fields, &request);
  for (const char* name : {"images", "template"}) RefuseGiven(&fields, name, name);
  if (const Json* context = fields.Find("context"); context != nullptr && !context->empty()) {
    fields.Fail(UnsupportedParam("context", "(/api/chat takes the messages so far)"));
  }
  const std::string prompt = fields.Text("prompt").value_or("");
  const std::string system = fields.Text("system").value_or("");
  ReadSuffix(&fields, &request);
  if (fields.Bool("raw").value_or(false) || request.infill) {
    request.prompts.push_back({.text = prompt});
    request.parse_special = true;
  } else {
    request.chat = true;
    if (!system.empty()) request.messages.push_back({.role = "system", .content = system});
    request.messages.push_back({.role = "user", .content = prompt});
  }
  parsed.only_loads = prompt.empty() && !request.infill;
  request.keep_alive_ms = ReadKeepAlive(&fields);
  return Finished(fields, std::move(parsed));
}

ApiRequest AsCompletion(ApiRequest request) {
  ApiPrompt prompt;
  for (const ChatMessage& message : std::exchange(request.messages, {})) {
    absl::StrAppend(&prompt.text, prompt.text.empty() ? "" : "\n\n", message.content);
  }
  request.chat = false;
  request.prompts = {std::move(prompt)};
  return request;
}

namespace {

absl::StatusOr<EmbeddingRequest> ParseInputs(absl::string_view text, const char* name) {
  const auto body = JsonBody::Parse(text);
  if (!body.ok()) return body.status();
  FieldReader fields(body->json());
  EmbeddingRequest request;
  request.model = fields.Text("model").value_or("");
  if (const auto dimensions = fields.Integer("dimensions", {0, 1 << 20}); dimensions > 0) {
    request.dimensions = static_cast<uint32_t>(*dimensions);
  }
  request.keep_alive_ms = ReadKeepAlive(&fields);
  request.truncates = fields.Bool("truncate").value_or(true);
  ApiRequest unused;
  ReadOptions(&fields, &unused);
  ReadEmbeddingInputs(name, &fields, &request);
  if (!fields.status().ok()) return fields.status();
  return request;
}

}  // namespace

absl::StatusOr<EmbeddingRequest> ParseOllamaEmbed(absl::string_view text) {
  return ParseInputs(text, "input");
}

absl::StatusOr<EmbeddingRequest> ParseOllamaEmbeddings(absl::string_view text) {
  return ParseInputs(text, "prompt");
}

absl::StatusOr<OllamaModelRequest> ParseOllamaModel(absl::string_view text) {
  const auto body = JsonBody::Parse(text);
  if (!body.ok()) return body.status();
  FieldReader fields(body->json());
  OllamaModelRequest parsed;
  parsed.model = fields.Text("model").value_or("");
  if (parsed.model.empty()) parsed.model = fields.Text("name").value_or("");  // the older one
  if (parsed.model.empty()) fields.Wrong("model", "is missing");
  parsed.stream = fields.Bool("stream").value_or(true);
  if (!fields.status().ok()) return fields.status();
  return parsed;
}

}  // namespace strata
