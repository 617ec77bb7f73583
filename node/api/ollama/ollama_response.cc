#include "node/api/ollama/ollama_response.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "node/api/json_body.h"
#include "node/api/ollama/ollama_error.h"
#include "node/api/ollama/ollama_models.h"
#include "node/api/server_sent_events.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct Content {
  std::string text, thought;
  OrderedJson calls = OrderedJson::array();

  bool empty() const { return text.empty() && thought.empty() && calls.empty(); }
};

OrderedJson Frame(const std::string& model, bool chat, const Content& content, bool done) {
  OrderedJson frame = {{"model", model}, {"created_at", OllamaTime(WallNow())}};
  OrderedJson message = {{"role", "assistant"}, {"content", content.text}};
  OrderedJson& thinking = chat ? message : frame;
  if (!chat) frame["response"] = content.text;
  if (!content.thought.empty()) thinking["thinking"] = content.thought;
  if (chat) {
    if (!content.calls.empty()) message["tool_calls"] = content.calls;
    frame["message"] = std::move(message);
  }
  frame["done"] = done;
  return frame;
}

void AddEnd(const std::string& reason, const ApiUsage& usage, OrderedJson* frame) {
  (*frame)["done_reason"] = reason == "length" ? "length" : "stop";
  (*frame)["total_duration"] = absl::ToInt64Nanoseconds(usage.total);
  (*frame)["load_duration"] = 0;  // a model is loaded before its requests come
  (*frame)["prompt_eval_count"] = usage.prompt_tokens;
  (*frame)["prompt_eval_duration"] = absl::ToInt64Nanoseconds(usage.first_token);
  (*frame)["eval_count"] = usage.completion_tokens;
  (*frame)["eval_duration"] = absl::ToInt64Nanoseconds(usage.total - usage.first_token);
}

// Appends the call if its arguments are an object.
void AddCall(const ApiCallPiece& call, OrderedJson* calls) {
  if (call.name.empty()) return;
  OrderedJson arguments = OrderedJson::object();
  if (!call.arguments.empty()) {
    arguments = OrderedJson::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
  }
  if (!arguments.is_object()) return;
  calls->push_back(
      {{"id", call.id},
       {"function",
        {{"index", call.index}, {"name", call.name}, {"arguments", std::move(arguments)}}}});
}

}  // namespace

HttpResponse OllamaStream() {
  HttpResponse head = EventStream();
  head.content_type = kOllamaStreamType;
  head.when_quiet.clear();  // clients parse each line
  return head;
}

std::string OllamaNothing(absl::string_view model) {
  OrderedJson frame = Frame(std::string(model), /*chat=*/true, {}, /*done=*/false);
  frame["response"] = "";
  return JsonText(frame) + "\n";
}

HttpResponse OllamaWriter::Begin(const std::vector<ApiPiece>& /*firsts*/,
                                 const ApiUsage& /*usage*/) {
  return OllamaStream();
}

std::string OllamaWriter::Piece(const ApiPiece& piece) {
  Content content = {.text = piece.text, .thought = piece.thought};
  for (const ApiCallPiece& next : piece.calls) {
    if (!next.name.empty()) {
      AddCall(call_, &content.calls);
      call_ = next;
    } else {
      call_.arguments += next.arguments;
    }
  }
  if (!piece.finish_reason.empty()) {
    finished_ = piece.finish_reason;
    AddCall(std::exchange(call_, {}), &content.calls);
  }
  if (content.empty()) return "";
  return JsonText(Frame(model_, chat_, content, /*done=*/false)) + "\n";
}

std::string OllamaWriter::End(const ApiUsage& usage) {
  OrderedJson frame = Frame(model_, chat_, {}, /*done=*/true);
  AddEnd(finished_, usage, &frame);
  return JsonText(frame) + "\n";
}

std::string OllamaWriter::Failure(const absl::Status& status) {
  return OllamaError(ErrorOf(status)) + "\n";
}

HttpResponse OllamaWriter::Whole(const std::vector<ApiPiece>& choices, const ApiUsage& usage) {
  const ApiPiece none;
  const ApiPiece& piece = choices.empty() ? none : choices.front();
  Content content = {.text = piece.text, .thought = piece.thought};
  for (const ApiCallPiece& call : piece.calls) AddCall(call, &content.calls);
  OrderedJson frame = Frame(model_, chat_, content, /*done=*/true);
  AddEnd(piece.finish_reason, usage, &frame);
  return {.body = JsonText(frame)};
}

HttpResponse OllamaWriter::Error(const absl::Status& status) {
  return ErrorResponse(status, OllamaError);
}

std::string OllamaEmbed(const std::string& model, const ApiEmbeddings& embeddings,
                        absl::Duration took) {
  OrderedJson vectors = OrderedJson::array();
  for (const std::vector<float>& vector : embeddings.vectors) vectors.push_back(FloatsJson(vector));
  return JsonText({{"model", model},
                   {"embeddings", std::move(vectors)},
                   {"total_duration", absl::ToInt64Nanoseconds(took)},
                   {"load_duration", 0},
                   {"prompt_eval_count", embeddings.prompt_tokens}});
}

std::string OllamaEmbeddings(const ApiEmbeddings& embeddings) {
  return JsonText({{"embedding", FloatsJson(embeddings.vectors[0])}});
}

std::string OllamaLoaded(const std::string& model, bool chat, bool unloads) {
  OrderedJson frame = Frame(model, chat, {}, /*done=*/true);
  frame["done_reason"] = unloads ? "unload" : "load";
  return JsonText(frame);
}

}  // namespace strata
