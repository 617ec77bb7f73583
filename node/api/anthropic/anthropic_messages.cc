#include "node/api/anthropic/anthropic_messages.h"

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"
#include "node/api/field_reader.h"
#include "node/api/json_body.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kContentForm = "must be a string or an array of parts";
// Claude Code's, of its client: it differs in each request, and no prefix would be found in a
// cache.
constexpr absl::string_view kClientMark = "x-anthropic-billing-header:";

std::string PathOf(const std::string& path, size_t index) { return absl::StrCat(path, ".", index); }

// Parts are paragraphs.
void AppendPart(absl::string_view text, std::string* to) {
  absl::StrAppend(to, to->empty() || text.empty() ? "" : "\n\n", text);
}

absl::StatusOr<std::string> TypeOf(const Json& part, const std::string& path) {
  if (const std::string* type = TextMember(part, "type"); type != nullptr) return *type;
  return BadParam(path + ".type", "is missing");
}

absl::StatusOr<std::string> TextField(const Json& part, const std::string& path, const char* name) {
  if (const std::string* text = TextMember(part, name); text != nullptr) return *text;
  return BadParam(absl::StrCat(path, ".", name), "must be a string");
}

// A string, or text parts alone.
absl::StatusOr<std::string> TextOf(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return BadParam(path, "must be a string or an array of text parts");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = PathOf(path, i);
    const auto type = TypeOf(content[i], at);
    if (!type.ok()) return type.status();
    if (*type != "text") return UnsupportedParam(at, absl::StrCat("of type ", *type));
    const auto part = TextField(content[i], at, "text");
    if (!part.ok()) return part.status();
    if (!absl::StartsWith(*part, kClientMark)) AppendPart(*part, &text);
  }
  return text;
}

std::string WithoutPrefix(absl::string_view id) {
  const absl::string_view rest = absl::StripPrefix(id, kAnthropicCallPrefix);
  return std::string(rest.empty() ? id : rest);
}

// `text`: the part's.
absl::Status ReadCall(const Json& part, absl::string_view text, const std::string& path,
                      ChatMessage* message) {
  const auto id = TextField(part, path, "id");
  if (!id.ok()) return id.status();
  const auto name = TextField(part, path, "name");
  if (!name.ok()) return name.status();
  const Json* input = Member(part, "input");
  if (id->empty() || name->empty()) return BadParam(path, "must have an id and a name");
  if (input == nullptr || !input->is_object())
    return BadParam(path + ".input", "must be an object");
  absl::string_view arguments = absl::StripAsciiWhitespace(MemberText(text, "input"));
  message->calls.push_back(
      {.id = WithoutPrefix(*id),
       .name = *name,
       .arguments = absl::StartsWith(arguments, "{") ? std::string(arguments) : input->dump()});
  return absl::OkStatus();
}

absl::Status ReadResult(const Json& part, const std::string& path,
                        std::vector<ChatMessage>* messages) {
  const auto id = TextField(part, path, "tool_use_id");
  if (!id.ok()) return id.status();
  if (id->empty()) return BadParam(path + ".tool_use_id", "must not be empty");
  ChatMessage result = {.role = "tool", .content = "", .call_id = WithoutPrefix(*id)};
  if (const Json* content = Member(part, "content"); content != nullptr) {
    auto text = TextOf(*content, path + ".content");
    if (!text.ok()) return text.status();
    result.content = *std::move(text);
  }
  if (const Json* failed = Member(part, "is_error"); failed != nullptr) {
    if (!failed->is_boolean()) return BadParam(path + ".is_error", "must be true or false");
    // Templates have no other place for it.
    if (failed->get<bool>()) result.content = absl::StrCat("Error: ", result.content);
  }
  messages->push_back(std::move(result));
  return absl::OkStatus();
}

absl::Status ReadPart(const Json& part, absl::string_view text, const std::string& path,
                      ChatMessage* message, std::vector<ChatMessage>* messages) {
  const auto type = TypeOf(part, path);
  if (!type.ok()) return type.status();
  const bool by_assistant = message->role == "assistant";
  if (*type == "text" || (*type == "thinking" && by_assistant)) {
    const auto words = TextField(part, path, type->c_str());
    if (!words.ok()) return words.status();
    AppendPart(*words, *type == "text" ? &message->content : &message->reasoning);
    return absl::OkStatus();
  }
  if (*type == "redacted_thinking" && by_assistant) return absl::OkStatus();
  if (*type == "tool_use" && by_assistant) return ReadCall(part, text, path, message);
  if (*type == "tool_result" && !by_assistant) {
    // Each result is a message of its own; what stands before it was said before.
    if (!message->content.empty()) {
      messages->push_back(*message);
      message->content.clear();
    }
    return ReadResult(part, path, messages);
  }
  return UnsupportedParam(path, absl::StrCat("of type ", *type));
}

absl::Status ReadMessage(const Json& json, absl::string_view text, const std::string& path,
                         std::vector<ChatMessage>* messages) {
  const std::string* role = TextMember(json, "role");
  if (role == nullptr || (*role != "user" && *role != "assistant" && *role != "system")) {
    return BadParam(path + ".role", "must be user, assistant or system");
  }
  ChatMessage message = {.role = *role, .content = ""};
  const std::string at = path + ".content";
  const Json* content = Member(json, "content");
  if (content == nullptr) return BadParam(at, "is missing");
  if (content->is_string() || *role == "system") {
    auto words = TextOf(*content, at);
    if (!words.ok()) return words.status();
    message.content = *std::move(words);
    messages->push_back(std::move(message));
    return absl::OkStatus();
  }
  if (!content->is_array()) return BadParam(at, kContentForm);
  const std::vector<absl::string_view> texts = ElementTexts(MemberText(text, "content"));
  const size_t before = messages->size();
  for (size_t i = 0; i < content->size(); ++i) {
    const absl::string_view part_text = texts.size() == content->size() ? texts[i] : "";
    absl::Status status = ReadPart((*content)[i], part_text, PathOf(at, i), &message, messages);
    if (!status.ok()) return status;
  }
  const bool has_results = messages->size() > before;
  if (!message.content.empty() || !has_results) messages->push_back(std::move(message));
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadAnthropicMessages(const Json& json, absl::string_view body, ApiRequest* request) {
  std::vector<ChatMessage>& messages = request->messages;
  if (const Json* system = Member(json, "system"); system != nullptr) {
    auto text = TextOf(*system, "system");
    if (!text.ok()) return text.status();
    if (!text->empty()) messages.push_back({.role = "system", .content = *std::move(text)});
  }
  const Json* list = Member(json, "messages");
  if (list == nullptr || !list->is_array() || list->empty()) {
    return BadParam("messages", "must be an array of at least one message");
  }
  const std::vector<absl::string_view> texts = ElementTexts(MemberText(body, "messages"));
  for (size_t i = 0; i < list->size(); ++i) {
    const absl::string_view text = texts.size() == list->size() ? texts[i] : "";
    absl::Status status = ReadMessage((*list)[i], text, PathOf("messages", i), &messages);
    if (!status.ok()) return status;
    if (messages.size() > kApiMessagesMax) {
      return BadParam("messages", absl::StrCat("may have at most ", kApiMessagesMax,
                                               " messages, results of tools included"));
    }
  }
  const ChatMessage& last = messages.back();
  request->continues_last = last.role == "assistant" && last.calls.empty() && !last.content.empty();
  return absl::OkStatus();
}

}  // namespace strata
