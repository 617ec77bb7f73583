#include "node/chat/chat_template.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "minja/minja.hpp"
#include "transport/base/utf8.h"

namespace strata {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kErrorBytesMax = 300;

// The template's own message, on one line; minja adds the place with several lines of source.
std::string ErrorText(const std::exception& error) {
  std::string words = error.what();
  words = words.substr(0, words.find(" at row "));
  words = absl::StrReplaceAll(words, {{"\n", " "}, {"\r", ""}});
  if (words.size() > kErrorBytesMax) words = words.substr(0, kErrorBytesMax) + "…";
  return ValidUtf8(words);
}

// The features of a template; a missing feature is replaced by words in a message.
struct Features {
  bool typed = false;           // content is an array of parts
  bool system_in_user = false;  // no system messages
  bool tools = false;
  enum class Calls { kWords, kText, kObject };
  Calls calls = Calls::kWords;  // the form of the arguments of an assistant's calls
  bool answers = false;         // messages of tools
};

OrderedJson ContentOf(const std::string& content, const Features& features) {
  if (!features.typed) return content;
  return OrderedJson::array({{{"type", "text"}, {"text", content}}});
}

OrderedJson ArgumentsOf(const ChatToolCall& call) {
  OrderedJson arguments = OrderedJson::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
  return arguments.is_discarded() ? OrderedJson(call.arguments) : arguments;
}

OrderedJson CallsOf(const std::vector<ChatToolCall>& calls, const Features& features) {
  OrderedJson list = OrderedJson::array();
  for (const ChatToolCall& call : calls) {
    const bool text = features.calls == Features::Calls::kText;
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

std::string ToolsInWords(const ChatTools& tools) {
  std::string words = "You may call these functions, each described by a line of JSON:\n<tools>\n";
  for (const ChatTool& tool : tools.list) absl::StrAppend(&words, tool.json, "\n");
  absl::StrAppend(&words,
                  "</tools>\nTo call one, answer with its name and its arguments, an object, "
                  "like this:\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": {}}\n"
                  "</tool_call>");
  return words;
}

OrderedJson MessageOf(const ChatMessage& message, const Features& features) {
  OrderedJson json = {{"role", message.role}};
  std::string content = message.content;
  if (!message.calls.empty() && features.calls == Features::Calls::kWords) {
    absl::StrAppend(&content, content.empty() ? "" : "\n", CallsInWords(message.calls));
  } else if (!message.calls.empty()) {
    json["tool_calls"] = CallsOf(message.calls, features);
  }
  if (message.role == "tool") {
    if (features.answers) {
      json["tool_call_id"] = message.call_id;
    } else {
      json["role"] = "user";
      content = absl::StrCat("<tool_response>\n", content, "\n</tool_response>");
    }
  }
  json["content"] = ContentOf(content, features);
  if (!message.name.empty()) json["name"] = message.name;
  if (!message.reasoning.empty()) json["reasoning_content"] = message.reasoning;
  return json;
}

// Sets the tool's name in tools' messages, which some templates need and clients leave out.
void NameAnswers(std::vector<ChatMessage>* messages) {
  std::map<std::string, std::string> names;
  for (ChatMessage& message : *messages) {
    for (const ChatToolCall& call : message.calls) names[call.id] = call.name;
    if (message.role != "tool" || !message.name.empty()) continue;
    const auto known = names.find(message.call_id);
    if (known != names.end()) message.name = known->second;
  }
}

OrderedJson MessagesOf(const std::vector<ChatMessage>& messages, const Features& features) {
  OrderedJson json = OrderedJson::array();
  std::string system;
  for (const ChatMessage& message : messages) {
    if (features.system_in_user && message.role == "system") {
      absl::StrAppend(&system, system.empty() ? "" : "\n", message.content);
      continue;
    }
    ChatMessage merged = message;
    if (!system.empty() && merged.role == "user") {
      merged.content = absl::StrCat(system, "\n\n", merged.content);
      system.clear();
    }
    json.push_back(MessageOf(merged, features));
  }
  if (!system.empty()) json.push_back(MessageOf({.role = "user", .content = system}, features));
  return json;
}

// Offset at which the last message's text ends in the prompt; templates may strip spaces around it.
absl::StatusOr<size_t> EndOf(absl::string_view content, absl::string_view prompt) {
  const absl::string_view with_end = absl::StripLeadingAsciiWhitespace(content);
  const absl::string_view plain = absl::StripAsciiWhitespace(content);
  const size_t at = prompt.rfind(plain);
  if (plain.empty() || at == absl::string_view::npos) {
    return absl::InvalidArgumentError(
        "the model's chat template leaves out the last message, so it cannot be continued");
  }
  return at + (absl::StartsWith(prompt.substr(at), with_end) ? with_end.size() : plain.size());
}

}  // namespace

class ChatTemplate::Impl final : public ChatTemplate {
 public:
  absl::Status Init(const Source& source) {
    bos_ = source.bos;
    eos_ = source.eos;
    try {
      root_ = minja::Parser::parse(
          source.text,
          {.trim_blocks = true, .lstrip_blocks = true, .keep_trailing_newline = false});
    } catch (const std::exception& error) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model's chat template cannot be read: ", ErrorText(error)));
    }
    // Probes the template's features by rendering test messages.
    const std::vector<ChatMessage> user = {{.role = "user", .content = "Strata-User"}};
    const std::vector<ChatMessage> both = {{.role = "system", .content = "Strata-System"}, user[0]};
    const auto shows = [this](const std::vector<ChatMessage>& messages, absl::string_view needle) {
      const auto prompt = Apply(messages, {}, absl::UnixEpoch(), {});
      return prompt.ok() && absl::StrContains(*prompt, needle);
    };
    if (!shows(user, "Strata-User")) {
      features_.typed = true;
      if (!shows(user, "Strata-User")) features_.typed = false;
    }
    features_.system_in_user = shows(user, "Strata-User") && !shows(both, "Strata-System");
    ProbeTools(user);
    return absl::OkStatus();
  }

 private:
  void ProbeTools(const std::vector<ChatMessage>& user) {
    ChatTools tools;
    tools.list.push_back(
        {.name = "strata_tool",
         .json = R"({"type":"function","function":{"name":"strata_tool","description":"d",)"
                 R"("parameters":{"type":"object","properties":{"strata_key":{"type":"string",)"
                 R"("description":"d"}},"required":["strata_key"]}}})",
         .parameters = {}});
    const auto shows = [this](const std::vector<ChatMessage>& messages, const ChatTools& offered,
                              std::initializer_list<const char*> needles) {
      const auto prompt = Apply(messages, offered, absl::UnixEpoch(), {});
      return prompt.ok() && std::any_of(needles.begin(), needles.end(), [&](const char* needle) {
               return absl::StrContains(*prompt, needle);
             });
    };
    features_.tools = true;
    features_.tools = shows(user, tools, {"strata_tool"});
    const ChatMessage call = {
        .role = "assistant",
        .content = "",
        .calls = {
            {.id = "abcdefghi", .name = "strata_tool", .arguments = R"({"strata_key":"x"})"}}};
    for (const auto calls : {Features::Calls::kObject, Features::Calls::kText}) {
      features_.calls = calls;
      // Arguments that the template escapes again would teach the model the wrong form.
      if (shows({user[0], call, user[0]}, {},
                {"\"strata_key\":", "'strata_key':", "strata_key=", "=strata_key>", ">strata_key<",
                 "=\"strata_key\"", "{strata_key:"}) ||
          shows({user[0], call}, {}, {"\"strata_key\":", "'strata_key':"})) {
        break;
      }
      features_.calls = Features::Calls::kWords;
    }
    const ChatMessage answer = {.role = "tool",
                                .content = "Strata-Answer",
                                .name = "strata_tool",
                                .calls = {},
                                .call_id = "abcdefghi"};
    features_.answers = true;
    features_.answers = features_.calls != Features::Calls::kWords &&
                        shows({user[0], call, answer}, {}, {"Strata-Answer"});
  }

  absl::StatusOr<Prompt> RenderAll(const std::vector<ChatMessage>& given, const ChatTools& tools,
                                   absl::Time now, const RenderOptions& options) const override {
    std::vector<ChatMessage> messages = given;
    NameAnswers(&messages);
    if (tools.offered() && !features_.tools) {
      const std::string words = ToolsInWords(tools);
      if (messages[0].role == "system") {
        absl::StrAppend(&messages[0].content, "\n\n", words);
      } else {
        messages.insert(messages.begin(), {.role = "system", .content = words});
      }
    }
    auto text = Apply(messages, tools, now, options);
    if (!text.ok()) return text.status();
    if (options.continues_last) {
      const absl::StatusOr<size_t> end = EndOf(messages.back().content, *text);
      if (!end.ok()) return end.status();
      text->resize(*end);
    }
    Prompt prompt = {.text = *std::move(text)};
    prompt.has_bos = !bos_.empty() && absl::StartsWith(prompt.text, bos_);
    return prompt;
  }

  absl::StatusOr<std::string> Apply(const std::vector<ChatMessage>& messages,
                                    const ChatTools& tools, absl::Time now,
                                    const RenderOptions& options) const {
    try {
      OrderedJson known =
          options.variables.empty() ? OrderedJson::object() : OrderedJson::parse(options.variables);
      known["messages"] = MessagesOf(messages, features_);
      known["add_generation_prompt"] = options.ends_with_opening && !options.continues_last;
      const auto context = minja::Context::make(minja::Value(known));
      if (tools.offered() && features_.tools) {
        OrderedJson list = OrderedJson::array();
        for (const ChatTool& tool : tools.list) list.push_back(OrderedJson::parse(tool.json));
        context->set("tools", minja::Value(list));
      }
      context->set("bos_token", bos_);
      context->set("eos_token", eos_);
      context->set("strftime_now",
                   minja::Value::callable(
                       [now](const std::shared_ptr<minja::Context>&, minja::ArgumentsValue& args) {
                         args.expectArgs("strftime_now", {1, 1}, {0, 0});
                         return minja::Value(absl::FormatTime(args.args[0].get<std::string>(), now,
                                                              absl::LocalTimeZone()));
                       }));
      std::string text = root_->render(context);
      if (text.size() > kChatPromptBytesMax) {
        return absl::InvalidArgumentError("the prompt is too long");
      }
      return text;
    } catch (const std::exception& error) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the model's chat template does not take these messages: ", ErrorText(error)));
    }
  }

  std::string bos_, eos_;
  std::shared_ptr<minja::TemplateNode> root_;  // shared, as minja's interface requires
  Features features_;
};

std::string ChatTemplate::Source::Key() const { return absl::StrCat(bos, "\n", eos, "\n", text); }

absl::StatusOr<std::shared_ptr<const ChatTemplate>> ChatTemplate::Parse(const Source& source) {
  auto parsed = std::make_shared<Impl>();  // shared by requests
  if (absl::Status status = parsed->Init(source); !status.ok()) return status;
  return parsed;
}

absl::StatusOr<ChatTemplate::Prompt> ChatTemplate::Render(const std::vector<ChatMessage>& messages,
                                                          const ChatTools& tools, absl::Time now,
                                                          const RenderOptions& options) const {
  return RenderAll(messages, tools, now, options);
}

}  // namespace strata
