#include "node/api/anthropic/anthropic_response.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "node/api/anthropic/anthropic_error.h"
#include "node/api/anthropic/anthropic_messages.h"
#include "node/api/json_body.h"
#include "node/api/server_sent_events.h"

namespace strata {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Some clients send a thought back only if it has one. Nothing is signed: it is not checked.
constexpr char kSignature[] = "strata";

std::string Event(const char* type, const OrderedJson& fields) {
  OrderedJson json = {{"type", type}};
  json.update(fields);
  return ServerSentEvent(type, JsonText(json));
}

std::string Ping() { return Event("ping", OrderedJson::object()); }

std::string DeltaEvent(size_t index, const char* type, const char* name, const std::string& text) {
  return Event("content_block_delta",
               {{"index", index}, {"delta", {{"type", type}, {name, text}}}});
}

const char* StopReasonOf(const ApiPiece& piece) {
  if (piece.finish_reason == "tool_calls") return "tool_use";
  if (piece.finish_reason == "length") return "max_tokens";
  return piece.stop_string.empty() ? "end_turn" : "stop_sequence";
}

OrderedJson StopOf(const ApiPiece& piece) {
  OrderedJson stop = {{"stop_reason", StopReasonOf(piece)}, {"stop_sequence", nullptr}};
  if (!piece.stop_string.empty()) stop["stop_sequence"] = piece.stop_string;
  return stop;
}

OrderedJson UsageOf(const ApiUsage& usage) {
  return {
      {"input_tokens", usage.prompt_tokens - std::min(usage.cached_tokens, usage.prompt_tokens)},
      {"cache_creation_input_tokens", 0},
      {"cache_read_input_tokens", usage.cached_tokens},
      {"output_tokens", usage.completion_tokens}};
}

OrderedJson Message(const AnthropicWriter::Answer& answer, OrderedJson content) {
  return {{"id", answer.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", answer.model},
          {"content", std::move(content)},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr}};
}

OrderedJson CallOf(const ApiCallPiece& call, OrderedJson input) {
  return {{"type", "tool_use"},
          {"id", absl::StrCat(kAnthropicCallPrefix, call.id)},
          {"name", call.name},
          {"input", std::move(input)}};
}

// An object also where the output was cut.
OrderedJson InputOf(const std::string& arguments) {
  if (!ParseJsonObject(arguments).ok()) return OrderedJson::object();
  OrderedJson input = OrderedJson::parse(arguments, nullptr, /*allow_exceptions=*/false);
  return input.is_object() ? input : OrderedJson::object();
}

OrderedJson ModelOf(const wire::ModelStatus& model, int64_t now_s) {
  const absl::Time created =
      absl::FromUnixSeconds(now_s - std::max<int64_t>(model.loaded_s_ago(), 0));
  OrderedJson json = {
      {"type", "model"},
      {"id", model.name()},
      {"display_name", model.name()},
      {"created_at", absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", created, absl::UTCTimeZone())}};
  if (model.n_ctx() > 0) {  // else it is not loaded
    json["max_input_tokens"] = model.n_ctx();
    json["max_tokens"] = model.n_ctx();
  }
  return json;
}

}  // namespace

HttpResponse AnthropicWriter::Begin(const std::vector<ApiPiece>& /*firsts*/,
                                    const ApiUsage& usage) {
  HttpResponse head = EventStream();
  head.when_quiet = Ping();
  OrderedJson message = Message(answer_, OrderedJson::array());
  // The cached tokens of the prompt are known at the end.
  message["usage"] = UsageOf({.prompt_tokens = usage.prompt_tokens});
  head.body = absl::StrCat(Event("message_start", {{"message", std::move(message)}}), Ping());
  return head;
}

void AnthropicWriter::Open(Block block, const ApiCallPiece* call, std::string* events) {
  if (open_ == block && call == nullptr) return;
  Close(events);
  OrderedJson json;
  if (block == Block::kThought) {
    json = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
  } else if (block == Block::kText) {
    json = {{"type", "text"}, {"text", ""}};
  } else {
    json = CallOf(call == nullptr ? ApiCallPiece() : *call, OrderedJson::object());
  }
  open_ = block;
  *events += Event("content_block_start", {{"index", index_}, {"content_block", std::move(json)}});
}

void AnthropicWriter::Close(std::string* events) {
  if (open_ == Block::kNone) return;
  if (open_ == Block::kThought) {
    *events += DeltaEvent(index_, "signature_delta", "signature", kSignature);
  }
  *events += Event("content_block_stop", {{"index", index_}});
  open_ = Block::kNone;
  ++index_;
}

std::string AnthropicWriter::Piece(const ApiPiece& piece) {
  std::string events;
  if (!piece.thought.empty()) {
    Open(Block::kThought, nullptr, &events);
    events += DeltaEvent(index_, "thinking_delta", "thinking", piece.thought);
  }
  if (!piece.text.empty()) {
    Open(Block::kText, nullptr, &events);
    events += DeltaEvent(index_, "text_delta", "text", piece.text);
  }
  for (const ApiCallPiece& call : piece.calls) {
    Open(Block::kCall, call.id.empty() ? nullptr : &call, &events);
    if (call.arguments.empty()) continue;
    events += DeltaEvent(index_, "input_json_delta", "partial_json", call.arguments);
  }
  if (!piece.finish_reason.empty()) {
    last_.finish_reason = piece.finish_reason;
    last_.stop_string = piece.stop_string;
  }
  return events;
}

std::string AnthropicWriter::End(const ApiUsage& usage) {
  std::string events;
  Close(&events);
  return absl::StrCat(events,
                      Event("message_delta", {{"delta", StopOf(last_)}, {"usage", UsageOf(usage)}}),
                      Event("message_stop", OrderedJson::object()));
}

std::string AnthropicWriter::Failure(const absl::Status& status) {
  ApiError error = ErrorOf(status);
  error.request_id = answer_.request_id;
  return ServerSentEvent("error", AnthropicError(error));
}

HttpResponse AnthropicWriter::Whole(const std::vector<ApiPiece>& choices, const ApiUsage& usage) {
  const ApiPiece& piece = choices.front();
  OrderedJson content = OrderedJson::array();
  if (!piece.thought.empty()) {
    content.push_back(
        {{"type", "thinking"}, {"thinking", piece.thought}, {"signature", kSignature}});
  }
  if (!piece.text.empty()) content.push_back({{"type", "text"}, {"text", piece.text}});
  for (const ApiCallPiece& call : piece.calls) {
    content.push_back(CallOf(call, InputOf(call.arguments)));
  }
  OrderedJson message = Message(answer_, std::move(content));
  message.update(StopOf(piece));
  message["usage"] = UsageOf(usage);
  return {.body = JsonText(message)};
}

HttpResponse AnthropicWriter::Error(const absl::Status& status) {
  return ErrorResponse(status, AnthropicError, answer_.request_id);
}

std::string AnthropicModelsJson(const std::vector<wire::ModelStatus>& models, int64_t now_s) {
  OrderedJson data = OrderedJson::array();
  for (const wire::ModelStatus& model : models) data.push_back(ModelOf(model, now_s));
  OrderedJson json = {
      {"data", std::move(data)}, {"has_more", false}, {"first_id", nullptr}, {"last_id", nullptr}};
  if (!models.empty()) {
    json["first_id"] = models.front().name();
    json["last_id"] = models.back().name();
  }
  return JsonText(json);
}

std::string AnthropicModelJson(const wire::ModelStatus& model, int64_t now_s) {
  return JsonText(ModelOf(model, now_s));
}

}  // namespace strata
