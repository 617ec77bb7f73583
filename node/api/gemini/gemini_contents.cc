#include "node/api/gemini/gemini_contents.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "node/api/api_request.h"
#include "node/api/field_reader.h"
#include "node/api/gemini/gemini_fields.h"
#include "node/api/tool_fields.h"

namespace strata {
namespace {

// The elements of a list, which may be given as the one it has.
std::vector<const SchemaJson*> GeminiList(const SchemaJson& json) {
  std::vector<const SchemaJson*> list;
  if (!json.is_array()) return {&json};
  for (const SchemaJson& each : json) list.push_back(&each);
  return list;
}

std::string TextOrEmpty(const SchemaJson& json, const char* name) {
  const std::string* text = TextMember(json, name);
  return text == nullptr ? "" : *text;
}

absl::Status ReadGeminiCall(const SchemaJson& call, const std::string& path, ChatMessage* message) {
  const std::string name = TextOrEmpty(call, "name");
  if (name.empty()) return BadParam(path + ".name", "is missing");
  const SchemaJson* args = Member(call, "args");
  if (args != nullptr && !args->is_object()) return BadParam(path + ".args", "must be an object");
  message->calls.push_back({.id = TextOrEmpty(call, "id"),
                            .name = name,
                            .arguments = args == nullptr ? "{}" : args->dump()});
  return absl::OkStatus();
}

absl::Status ReadGeminiResult(const SchemaJson& result, const std::string& path,
                              std::vector<ChatMessage>* messages) {
  const std::string name = TextOrEmpty(result, "name");
  if (name.empty()) return BadParam(path + ".name", "is missing");
  const SchemaJson* response = Member(result, "response");
  if (response == nullptr) return BadParam(path + ".response", "is missing");
  messages->push_back({.role = "tool",
                       .content = response->dump(),
                       .name = name,
                       .call_id = TextOrEmpty(result, "id")});
  return absl::OkStatus();
}

// `message`: what the parts of one content have said so far.
absl::Status ReadGeminiPart(const SchemaJson& part, const std::string& path, ChatMessage* message,
                            std::vector<ChatMessage>* messages) {
  if (!part.is_object()) return BadParam(path, "must be an object");
  const bool by_model = message->role == "assistant";
  if (const SchemaJson* text = Member(part, "text")) {
    if (!text->is_string()) return BadParam(path + ".text", "must be a string");
    const SchemaJson* thought = Member(part, "thought");
    const bool is_thought = by_model && thought != nullptr && *thought == true;
    (is_thought ? message->reasoning : message->content) += text->get_ref<const std::string&>();
    return absl::OkStatus();
  }
  if (const SchemaJson* call = GeminiField(part, "functionCall"); call != nullptr && by_model) {
    return ReadGeminiCall(*call, path + ".functionCall", message);
  }
  if (const SchemaJson* result = GeminiField(part, "functionResponse");
      result != nullptr && !by_model) {
    // Each result is a message of its own; what stands before it was said before.
    if (!message->content.empty()) {
      messages->push_back(*message);
      message->content.clear();
    }
    return ReadGeminiResult(*result, path + ".functionResponse", messages);
  }
  for (const char* kind : {"inlineData", "fileData", "executableCode", "codeExecutionResult",
                           "functionCall", "functionResponse"}) {
    if (GeminiField(part, kind) != nullptr) {
      return UnsupportedParam(absl::StrCat(path, ".", kind));
    }
  }
  return absl::OkStatus();  // a signature alone, say
}

absl::Status ReadGeminiContent(const SchemaJson& content, const std::string& path,
                               std::vector<ChatMessage>* messages) {
  if (!content.is_object()) return BadParam(path, "must be an object with parts");
  const SchemaJson* role = Member(content, "role");
  ChatMessage message = {.role = "user", .content = ""};
  if (role != nullptr && *role == "model") {
    message.role = "assistant";
  } else if (role != nullptr && *role == "system") {
    message.role = "system";
  } else if (role != nullptr && *role != "user" && *role != "function" && *role != "") {
    return BadParam(path + ".role", "must be user, model, function or system");
  }
  const SchemaJson* parts = Member(content, "parts");
  if (parts == nullptr) return BadParam(path + ".parts", "is missing");
  const size_t before = messages->size();
  const std::vector<const SchemaJson*> list = GeminiList(*parts);
  for (size_t i = 0; i < list.size(); ++i) {
    absl::Status status =
        ReadGeminiPart(*list[i], absl::StrCat(path, ".parts[", i, "]"), &message, messages);
    if (!status.ok()) return status;
  }
  const bool has_results = messages->size() > before;
  if (!message.content.empty() || !has_results) messages->push_back(std::move(message));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> GeminiTextOf(const SchemaJson& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  std::vector<ChatMessage> messages;
  if (absl::Status status = ReadGeminiContent(content, path, &messages); !status.ok()) {
    return status;
  }
  if (messages.size() != 1 || !messages[0].calls.empty() || messages[0].role == "tool") {
    return BadParam(path, "must have text alone");
  }
  return std::move(messages[0].content);
}

absl::Status ReadGeminiContents(const SchemaJson& json, std::vector<ChatMessage>* messages) {
  if (const SchemaJson* system = GeminiField(json, "systemInstruction")) {
    auto text = GeminiTextOf(*system, "systemInstruction");
    if (!text.ok()) return text.status();
    messages->push_back({.role = "system", .content = *std::move(text)});
  }
  const SchemaJson* contents = Member(json, "contents");
  if (contents == nullptr) return BadParam("contents", "is missing");
  const std::vector<const SchemaJson*> list = GeminiList(*contents);
  if (list.empty() || list.size() > kApiMessagesMax) {
    return BadParam("contents", absl::StrCat("must be 1 to ", kApiMessagesMax, " contents"));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    absl::Status status = ReadGeminiContent(*list[i], absl::StrCat("contents[", i, "]"), messages);
    if (!status.ok()) return status;
  }
  return MatchResults(messages);
}

}  // namespace strata
