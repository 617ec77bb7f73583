#include "node/chat/template_messages.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace strata {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kShortIdLength = 9;

OrderedJson ContentOf(const std::string& content, const TemplateForm& form) {
  if (!form.typed) return content;
  return OrderedJson::array({{{"type", "text"}, {"text", content}}});
}

OrderedJson ArgumentsOf(const ChatToolCall& call) {
  OrderedJson arguments = OrderedJson::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
  return arguments.is_discarded() ? OrderedJson(call.arguments) : arguments;
}

OrderedJson CallsOf(const std::vector<ChatToolCall>& calls, const TemplateForm& form) {
  OrderedJson list = OrderedJson::array();
  for (const ChatToolCall& call : calls) {
    const bool text = form.calls == TemplateForm::Calls::kText;
    list.push_back({{"id", call.id},
                    {"type", "function"},
                    {"function",
                     {{"name", call.name},
                      {"arguments", text ? OrderedJson(call.arguments) : ArgumentsOf(call)}}}});
  }
  return list;
}

std::string CallsInWords(const std::vector<ChatToolCall>& calls) {
  std::string words;
  for (const ChatToolCall& call : calls) {
    const OrderedJson json = {{"name", call.name}, {"arguments", ArgumentsOf(call)}};
    absl::StrAppend(&words, words.empty() ? "" : "\n", "<tool_call>\n",
                    json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace),
                    "\n</tool_call>");
  }
  return words;
}

OrderedJson MessageOf(const ChatMessage& message, const TemplateForm& form) {
  const bool in_words = form.calls == TemplateForm::Calls::kWords;
  const bool is_answer = message.role == "tool";
  std::string content = message.content;
  if (!message.calls.empty() && in_words) {
    absl::StrAppend(&content, content.empty() ? "" : "\n", CallsInWords(message.calls));
  }
  if (is_answer && !form.answers) {
    content = absl::StrCat("<tool_response>\n", content, "\n</tool_response>");
  }
  const bool no_content = form.null_content && content.empty() && !message.calls.empty();
  OrderedJson json = {{"role", is_answer && !form.answers ? "user" : message.role},
                      {"content", no_content ? OrderedJson() : ContentOf(content, form)}};
  if (!message.reasoning.empty()) json[form.reasoning] = message.reasoning;
  if (!message.calls.empty() && !in_words) json["tool_calls"] = CallsOf(message.calls, form);
  if (is_answer && form.answers) json["tool_call_id"] = message.call_id;
  if (!message.name.empty()) json["name"] = message.name;
  return json;
}

bool IsShortId(const std::string& id) {
  return id.size() == kShortIdLength && std::all_of(id.begin(), id.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c));
         });
}

bool HasThoughtTextAndCalls(const ChatMessage& message) {
  return !message.reasoning.empty() && !message.content.empty() && !message.calls.empty();
}

void ShortenIds(std::vector<ChatMessage>* messages) {
  std::map<std::string, std::string> shorter;
  const auto shorten = [&](std::string* id) {
    if (IsShortId(*id)) return;
    const auto [known, is_new] = shorter.try_emplace(*id);
    if (is_new) known->second = absl::StrFormat("call%05d", shorter.size());
    *id = known->second;
  };
  for (ChatMessage& message : *messages) {
    for (ChatToolCall& call : message.calls) shorten(&call.id);
    if (message.role == "tool") shorten(&message.call_id);
  }
}

// Each call is followed by its result.
std::vector<ChatMessage> WithOneCallEach(std::vector<ChatMessage> messages) {
  std::vector<ChatMessage> out;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].calls.size() < 2) {
      out.push_back(std::move(messages[i]));
      continue;
    }
    size_t end = i + 1;
    while (end < messages.size() && messages[end].role == "tool") ++end;
    std::vector<ChatMessage> answers(std::make_move_iterator(messages.begin() + i + 1),
                                     std::make_move_iterator(messages.begin() + end));
    const std::vector<ChatToolCall> calls = std::exchange(messages[i].calls, {});
    ChatMessage one = std::move(messages[i]);
    for (const ChatToolCall& call : calls) {
      one.calls = {call};
      out.push_back(std::exchange(one, {.role = "assistant", .content = ""}));
      const auto answer = std::find_if(answers.begin(), answers.end(),
                                       [&](const ChatMessage& a) { return a.call_id == call.id; });
      if (answer == answers.end()) continue;
      out.push_back(std::move(*answer));
      answers.erase(answer);
    }
    std::move(answers.begin(), answers.end(), std::back_inserter(out));
    i = end - 1;
  }
  return out;
}

std::vector<ChatMessage> WithOneSystemMessage(std::vector<ChatMessage> messages) {
  ChatMessage system = {.role = "system", .content = ""};
  for (const ChatMessage& message : messages) {
    if (message.role != "system") continue;
    absl::StrAppend(&system.content, system.content.empty() ? "" : "\n\n", message.content);
  }
  std::erase_if(messages, [](const ChatMessage& message) { return message.role == "system"; });
  messages.insert(messages.begin(), std::move(system));
  return messages;
}

std::vector<ChatMessage> WithSystemInUser(const std::vector<ChatMessage>& messages) {
  std::vector<ChatMessage> out;
  std::string system;
  for (const ChatMessage& message : messages) {
    if (message.role == "system") {
      absl::StrAppend(&system, system.empty() ? "" : "\n", message.content);
      continue;
    }
    out.push_back(message);
    if (system.empty() || message.role != "user") continue;
    out.back().content = absl::StrCat(system, "\n\n", message.content);
    system.clear();
  }
  if (!system.empty()) out.push_back({.role = "user", .content = system});
  return out;
}

}  // namespace

OrderedJson MessagesJson(const std::vector<ChatMessage>& messages, const TemplateForm& form) {
  OrderedJson json = OrderedJson::array();
  for (const ChatMessage& message : messages) json.push_back(MessageOf(message, form));
  return json;
}

OrderedJson ToolsJson(const ChatTools& tools) {
  if (!tools.offered()) return nullptr;
  OrderedJson list = OrderedJson::array();
  for (const ChatTool& tool : tools.list) list.push_back(OrderedJson::parse(tool.json));
  return list;
}

ChatTools FilledTools(const ChatTools& tools) {
  ChatTools filled = tools;
  for (ChatTool& tool : filled.list) {
    OrderedJson json = OrderedJson::parse(tool.json);
    OrderedJson& function = json["function"];
    if (!function.contains("description")) function["description"] = "";
    if (!function.contains("parameters")) {
      function["parameters"] = {{"type", "object"}, {"properties", OrderedJson::object()}};
    }
    tool.json = json.dump();
  }
  return filled;
}

void DescribeTools(const ChatTools& tools, std::vector<ChatMessage>* messages) {
  std::string words = "You may call these functions, each described by a line of JSON:\n<tools>\n";
  for (const ChatTool& tool : tools.list) absl::StrAppend(&words, tool.json, "\n");
  absl::StrAppend(&words,
                  "</tools>\nTo call one, answer with its name and its arguments, an object, "
                  "like this:\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": {}}\n"
                  "</tool_call>");
  if (!messages->empty() && messages->front().role == "system") {
    absl::StrAppend(&messages->front().content, "\n\n", words);
  } else {
    messages->insert(messages->begin(), {.role = "system", .content = words});
  }
}

void NameAnswers(std::vector<ChatMessage>* messages) {
  std::map<std::string, std::string> names;
  for (ChatMessage& message : *messages) {
    for (const ChatToolCall& call : message.calls) names[call.id] = call.name;
    if (message.role != "tool" || !message.name.empty()) continue;
    const auto known = names.find(message.call_id);
    if (known != names.end()) message.name = known->second;
  }
}

std::vector<ChatMessage> Fitted(std::vector<ChatMessage> messages, const MessageFit& fit) {
  if (fit.one_call) messages = WithOneCallEach(std::move(messages));
  if (fit.short_ids) ShortenIds(&messages);
  for (ChatMessage& message : messages) {
    if (fit.fewer_thoughts && HasThoughtTextAndCalls(message)) message.reasoning.clear();
  }
  if (fit.system == MessageFit::System::kFirst)
    messages = WithOneSystemMessage(std::move(messages));
  if (fit.system == MessageFit::System::kInUser) messages = WithSystemInUser(messages);
  return messages;
}

std::vector<MessageFit> FitsFor(const std::vector<ChatMessage>& messages) {
  bool foreign_ids = false, several_calls = false, any_system = false, system_later = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    any_system |= message.role == "system";
    system_later |= message.role == "system" && i > 0;
    several_calls |= message.calls.size() > 1;
    foreign_ids |= message.role == "tool" && !IsShortId(message.call_id);
    for (const ChatToolCall& call : message.calls) foreign_ids |= !IsShortId(call.id);
  }
  const bool has_thoughts = std::any_of(messages.begin(), messages.end(), HasThoughtTextAndCalls);
  std::vector<MessageFit> fits;
  using enum MessageFit::System;
  for (const MessageFit::System system : {kAsGiven, kFirst, kInUser}) {
    if ((system == kFirst && !system_later) || (system == kInUser && !any_system)) continue;
    for (const bool one_call : {false, true}) {
      if (one_call && !several_calls) continue;
      for (const bool short_ids : {false, true}) {
        if (short_ids && !foreign_ids) continue;
        for (const bool fewer_thoughts : {false, true}) {
          if (fewer_thoughts && !has_thoughts) continue;
          if (system == kAsGiven && !one_call && !short_ids && !fewer_thoughts) continue;
          fits.push_back({.short_ids = short_ids,
                          .one_call = one_call,
                          .system = system,
                          .fewer_thoughts = fewer_thoughts});
        }
      }
    }
  }
  return fits;
}

}  // namespace strata
