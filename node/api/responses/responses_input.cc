#include "node/api/responses/responses_input.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/request/request_status.h"
#include "node/api/field_reader.h"
#include "node/api/responses/responses_tools.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kBlankLine = "\n\n";

void Append(absl::string_view text, std::string* to) {
  if (!text.empty()) absl::StrAppend(to, to->empty() ? "" : kBlankLine, text);
}

// A string, or parts of text.
absl::StatusOr<std::string> TextOfParts(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return BadParam(path, "must be a string or an array of parts");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string part_path = absl::StrCat(path, "[", i, "]");
    const std::string* type = TextMember(content[i], "type");
    if (type == nullptr) return BadParam(part_path + ".type", "must be a string");
    const char* member = *type == "refusal" ? "refusal" : "text";
    if (*type != "input_text" && *type != "output_text" && *type != "text" &&
        *type != "reasoning_text" && *type != "summary_text" && *type != "refusal") {
      return UnsupportedParam(part_path + ".type", absl::StrCat("\"", *type, "\""));
    }
    const std::string* words = TextMember(content[i], member);
    if (words == nullptr) {
      return BadParam(absl::StrCat(part_path, ".", member), "must be a string");
    }
    text += *words;
  }
  return text;
}

}  // namespace

Json NormalItem(Json item) {
  if (!item.is_object()) return item;
  const std::string* role = TextMember(item, "role");
  const std::string* given = TextMember(item, "type");
  if (role == nullptr || (given != nullptr && *given != "message")) return item;
  const char* type = *role == "assistant" ? "output_text" : "input_text";
  item["type"] = "message";
  item["status"] = "completed";
  if (const auto content = item.find("content"); content != item.end() && content->is_string()) {
    Json part = {{"type", type}, {"text", *content}};
    if (*role == "assistant") part["annotations"] = Json::array();
    *content = Json::array({std::move(part)});
  }
  return item;
}

absl::Status ItemReader::Add(const Json& item, const std::string& path) {
  if (!item.is_object()) return BadParam(path, "must be an object");
  const std::string* type = TextMember(item, "type");
  if (type == nullptr && item.contains("role")) return AddMessage(item, path);
  if (type == nullptr) return BadParam(path + ".type", "must be a string");
  if (*type == "message") return AddMessage(item, path);
  if (*type == "function_call") return AddCall(item, /*is_custom=*/false, path);
  if (*type == "custom_tool_call") return AddCall(item, /*is_custom=*/true, path);
  if (*type == "function_call_output" || *type == "custom_tool_call_output") {
    return AddResult(item, path);
  }
  if (*type == "reasoning") return AddThought(item, path);
  if (*type == "web_search_call") return absl::OkStatus();  // of another server; it says nothing
  return UnsupportedParam(path + ".type", absl::StrCat("\"", *type, "\""));
}

absl::Status ItemReader::AddMessage(const Json& item, const std::string& path) {
  const std::string* role = TextMember(item, "role");
  if (role == nullptr ||
      (*role != "user" && *role != "assistant" && *role != "system" && *role != "developer")) {
    return BadParam(path + ".role", "must be user, assistant, system or developer");
  }
  const Json* content = Member(item, "content");
  if (content == nullptr) return BadParam(path + ".content", "is missing");
  auto text = TextOfParts(*content, path + ".content");
  if (!text.ok()) return text.status();
  if (*role == "assistant") {
    Append(*text, &Assistant().content);
  } else {
    thought_.clear();
    messages_->push_back({.role = *role == "developer" ? "system" : *role, .content = *text});
  }
  return absl::OkStatus();
}

absl::Status ItemReader::AddCall(const Json& item, bool is_custom, const std::string& path) {
  const std::string* name = TextMember(item, "name");
  const std::string* space = TextMember(item, "namespace");
  const std::string* id = TextMember(item, "call_id");
  const char* member = is_custom ? "input" : "arguments";
  const std::string* arguments = TextMember(item, member);
  if (name == nullptr || name->empty()) return BadParam(path + ".name", "is missing");
  if (id == nullptr || id->empty()) return BadParam(path + ".call_id", "is missing");
  if (arguments == nullptr) return BadParam(absl::StrCat(path, ".", member), "must be a string");
  Assistant().calls.push_back({.id = *id,
                               .name = ShownToolName(space != nullptr ? *space : "", *name),
                               .arguments = is_custom ? CustomArguments(*arguments) : *arguments});
  return absl::OkStatus();
}

absl::Status ItemReader::AddResult(const Json& item, const std::string& path) {
  const std::string* id = TextMember(item, "call_id");
  if (id == nullptr || id->empty()) return BadParam(path + ".call_id", "is missing");
  const ChatToolCall* called = nullptr;
  for (auto message = messages_->rbegin(); message != messages_->rend(); ++message) {
    for (const ChatToolCall& call : message->calls) {
      if (call.id == *id) called = &call;
    }
    if (called != nullptr) break;
  }
  if (called == nullptr) {
    return BadParam(path + ".call_id",
                    absl::StrCat("no function call before it has the call_id \"", *id, "\""));
  }
  const Json* output = Member(item, "output");
  if (output == nullptr) return BadParam(path + ".output", "is missing");
  auto text = TextOfParts(*output, path + ".output");
  if (!text.ok()) return text.status();
  thought_.clear();
  ChatMessage result = {.role = "tool", .content = *std::move(text)};
  result.name = called->name;
  result.call_id = *id;
  messages_->push_back(std::move(result));
  return absl::OkStatus();
}

absl::Status ItemReader::AddThought(const Json& item, const std::string& path) {
  // The thought itself where it can be read, else what is told of it.
  for (const char* name : {"content", "summary"}) {
    const Json* parts = Member(item, name);
    if (parts == nullptr || (parts->is_array() && parts->empty())) continue;
    auto text = TextOfParts(*parts, absl::StrCat(path, ".", name));
    if (!text.ok()) return text.status();
    Append(*text, &thought_);
    break;
  }
  return absl::OkStatus();
}

ChatMessage& ItemReader::Assistant() {
  if (messages_->empty() || messages_->back().role != "assistant") {
    messages_->push_back({.role = "assistant", .content = ""});
  }
  Append(std::exchange(thought_, {}), &messages_->back().reasoning);
  return messages_->back();
}

}  // namespace strata
