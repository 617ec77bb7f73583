#include "node/api/responses/responses_writer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "node/api/json_body.h"
#include "node/api/responses/responses_error.h"
#include "node/api/server_sent_events.h"

namespace strata {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson UsageOf(const ApiUsage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

OrderedJson TextOrNull(const std::string& text) {
  return text.empty() ? OrderedJson() : OrderedJson(text);
}

}  // namespace

std::string ResponsesWriter::Event(const char* type, uint64_t sequence, Json members) const {
  Json event = {{"type", type}, {"sequence_number", sequence}};
  event.update(members);
  return ServerSentEvent(type, JsonText(event));
}

std::string ResponsesWriter::ItemEvent(const char* type, Json members) {
  Json all = {{"item_id", ItemId()}, {"output_index", output_.size()}};
  all.update(members);
  return NextEvent(type, std::move(all));
}

HttpResponse ResponsesWriter::Begin(const std::vector<ApiPiece>& /*firsts*/,
                                    const ApiUsage& /*usage*/) {
  HttpResponse head = EventStream();
  // Pieces may have come already: their items are not in it yet.
  Json frame = Frame("in_progress");
  frame["output"] = Json::array();
  head.body = absl::StrCat(Event("response.created", 0, {{"response", frame}}),
                           Event("response.in_progress", 1, {{"response", frame}}));
  return head;
}

std::string ResponsesWriter::ItemId() const {
  const char* prefix = kind_ == Kind::kThought      ? "rs"
                       : kind_ == Kind::kText       ? "msg"
                       : kind_ == Kind::kCustomCall ? "ctc"
                                                    : "fc";
  return absl::StrCat(prefix, "_", options_.key, output_.size());
}

nlohmann::ordered_json ResponsesWriter::Part() const {
  if (kind_ == Kind::kThought) return {{"type", "reasoning_text"}, {"text", text_}};
  return {{"type", "output_text"},
          {"text", text_},
          {"annotations", Json::array()},
          {"logprobs", Json::array()}};
}

nlohmann::ordered_json ResponsesWriter::Item(const char* status, bool begins) const {
  Json item = {{"id", ItemId()}, {"type", "message"}, {"status", status}};
  const Json content = begins ? Json::array() : Json::array({Part()});
  switch (kind_) {
    case Kind::kNone:
      break;
    case Kind::kThought:
      item["type"] = "reasoning";
      item["summary"] = Json::array();
      item["content"] = content;
      break;
    case Kind::kText:
      item["role"] = "assistant";
      item["content"] = content;
      break;
    case Kind::kCall:
    case Kind::kCustomCall: {
      const bool is_custom = kind_ == Kind::kCustomCall;
      item["type"] = is_custom ? "custom_tool_call" : "function_call";
      item["call_id"] = call_id_;
      item["name"] = name_;
      if (!name_space_.empty()) item["namespace"] = name_space_;
      item[is_custom ? "input" : "arguments"] = is_custom && !begins ? CustomInput(text_) : text_;
      break;
    }
  }
  return item;
}

std::string ResponsesWriter::Open(Kind kind) {
  std::string events = Close("completed");
  kind_ = kind;
  text_.clear();
  events +=
      NextEvent("response.output_item.added",
                {{"output_index", output_.size()}, {"item", Item("in_progress", /*begins=*/true)}});
  if (kind == Kind::kThought || kind == Kind::kText) {
    events += ItemEvent("response.content_part.added", {{"content_index", 0}, {"part", Part()}});
  }
  return events;
}

std::string ResponsesWriter::OpenCall(const ApiCallPiece& call) {
  std::string events = Close("completed");
  const auto tool =
      std::find_if(options_.renamed.begin(), options_.renamed.end(),
                   [&call](const RenamedTool& each) { return each.shown == call.name; });
  const bool is_renamed = tool != options_.renamed.end();
  call_id_ = call.id;
  name_ = is_renamed ? tool->name : call.name;
  name_space_ = is_renamed ? tool->name_space : "";
  return events + Open(is_renamed && tool->is_custom ? Kind::kCustomCall : Kind::kCall);
}

std::string ResponsesWriter::Add(Kind kind, const std::string& text) {
  if (text.empty()) return "";
  std::string events = kind_ == kind ? "" : Open(kind);
  text_ += text;
  Json members = {{"content_index", 0}, {"delta", text}};
  if (kind == Kind::kText) members["logprobs"] = Json::array();
  return events + ItemEvent(kind == Kind::kText ? "response.output_text.delta"
                                                : "response.reasoning_text.delta",
                            std::move(members));
}

std::string ResponsesWriter::AddArguments(const std::string& text) {
  if (text.empty() || (kind_ != Kind::kCall && kind_ != Kind::kCustomCall)) return "";
  text_ += text;
  if (kind_ == Kind::kCustomCall) return "";  // its text is known at its end
  return ItemEvent("response.function_call_arguments.delta", {{"delta", text}});
}

std::string ResponsesWriter::Close(const char* status) {
  std::string events;
  switch (kind_) {
    case Kind::kNone:
      return events;
    case Kind::kThought:
      events = ItemEvent("response.reasoning_text.done", {{"content_index", 0}, {"text", text_}});
      break;
    case Kind::kText:
      events = ItemEvent("response.output_text.done",
                         {{"content_index", 0}, {"text", text_}, {"logprobs", Json::array()}});
      break;
    case Kind::kCall:
      events = ItemEvent("response.function_call_arguments.done",
                         {{"name", name_}, {"arguments", text_}});
      break;
    case Kind::kCustomCall: {
      const std::string input = CustomInput(text_);
      events = ItemEvent("response.custom_tool_call_input.delta", {{"delta", input}});
      events += ItemEvent("response.custom_tool_call_input.done", {{"input", input}});
      break;
    }
  }
  if (kind_ == Kind::kThought || kind_ == Kind::kText) {
    events += ItemEvent("response.content_part.done", {{"content_index", 0}, {"part", Part()}});
  }
  Json item = Item(status);
  events +=
      NextEvent("response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
  output_.push_back(std::move(item));
  kind_ = Kind::kNone;
  return events;
}

std::string ResponsesWriter::Piece(const ApiPiece& piece) {
  std::string events;
  auto call = piece.calls.begin();
  for (; call != piece.calls.end() && call->name.empty(); ++call) {
    events += AddArguments(call->arguments);  // of the open call
  }
  events += Add(Kind::kThought, piece.thought);
  events += Add(Kind::kText, piece.text);
  for (; call != piece.calls.end(); ++call) {
    if (!call->name.empty()) events += OpenCall(*call);
    events += AddArguments(call->arguments);
  }
  if (piece.finish_reason.empty()) return events;
  is_cut_ = piece.finish_reason == "length";
  // A response has one item at least.
  if (kind_ == Kind::kNone && output_.empty()) events += Open(Kind::kText);
  events += Close(is_cut_ ? "incomplete" : "completed");
  return events;
}

nlohmann::ordered_json ResponsesWriter::Frame(const char* status) const {
  Json frame = {{"id", absl::StrCat("resp_", options_.key)},
                {"object", "response"},
                {"created_at", options_.created_s},
                {"status", status},
                {"background", false},
                {"error", nullptr},
                {"incomplete_details", nullptr},
                {"model", options_.model},
                {"output", output_},
                {"usage", nullptr}};
  frame.update(options_.echo);
  return frame;
}

nlohmann::ordered_json ResponsesWriter::Complete(const ApiUsage& usage) {
  Json frame = Frame(is_cut_ ? "incomplete" : "completed");
  if (is_cut_) frame["incomplete_details"] = {{"reason", "max_output_tokens"}};
  frame["usage"] = UsageOf(usage);
  if (options_.on_end != nullptr) {
    StoredResponse stored = {.response = JsonText(frame), .output = JsonText(output_)};
    for (const Json& item : output_) stored.output_ids.push_back(item["id"].get<std::string>());
    options_.on_end(frame["id"].get<std::string>(), std::move(stored));
  }
  return frame;
}

std::string ResponsesWriter::End(const ApiUsage& usage) {
  return NextEvent(is_cut_ ? "response.incomplete" : "response.completed",
                   {{"response", Complete(usage)}});
}

std::string ResponsesWriter::Failure(const absl::Status& status) {
  const ApiError error = ErrorOf(status);
  const std::string code = error.code.empty() ? "server_error" : error.code;
  std::string events = Close("incomplete");
  Json frame = Frame("failed");
  frame["error"] = {{"code", code}, {"message", error.message}};
  // Some clients read the error's members here, others in "error".
  Json members = {{"code", code}, {"message", error.message}, {"param", TextOrNull(error.param)}};
  members.update(Json::parse(ResponsesError(error)));
  events += NextEvent("error", std::move(members));
  events += NextEvent("response.failed", {{"response", std::move(frame)}});
  return events;
}

HttpResponse ResponsesWriter::Whole(const std::vector<ApiPiece>& choices, const ApiUsage& usage) {
  for (const ApiPiece& choice : choices) Piece(choice);
  return {.body = JsonText(Complete(usage))};
}

HttpResponse ResponsesWriter::Error(const absl::Status& status) {
  return ErrorResponse(status, ResponsesError);
}

}  // namespace strata
