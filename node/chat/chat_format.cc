#include "node/chat/chat_format.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "node/chat/harmony_reader.h"
#include "node/chat/known_tool_calls.h"

namespace strata {
namespace {

using Json = nlohmann::ordered_json;
using absl::string_view;

// What ends a message beside the template's own end: it ends the generation, so no output has it.
constexpr string_view kEnds[] = {"<|eom_id|>",
                                 "<|im_end|>",
                                 "<|eot_id|>",
                                 "<|eot|>",
                                 "<|end|>",
                                 "<|endoftext|>",
                                 "<|END_OF_TURN_TOKEN|>",
                                 "<|tool_response>"};

// A template that makes more of a few words is no chat's.
constexpr size_t kProbeBytesMax = 256 * 1024;

ChatTools ProbeTools() {
  ChatTools tools;
  for (const string_view name : kProbeNames) {
    Json parameters = {
        {"type", "object"},
        {"properties",
         {{std::string(kProbeTextKey), {{"type", "string"}, {"description", "d"}}},
          {std::string(kProbeNumberKey), {{"type", "integer"}, {"description", "d"}}}}}};
    const Json json = {
        {"type", "function"},
        {"function",
         {{"name", std::string(name)}, {"description", "d"}, {"parameters", parameters}}}};
    tools.list.push_back(
        {.name = std::string(name), .json = json.dump(), .parameters = parameters.dump()});
  }
  return tools;
}

ChatMessage ProbeCalls(size_t count, bool named_ids) {
  ChatMessage message = {.role = "assistant", .content = ""};
  for (size_t i = 0; i < count; ++i) {
    const std::string name(kProbeNames[i]);
    message.calls.push_back(
        {.id = named_ids ? absl::StrCat("functions.", name, ":", i) : std::string(kProbeIds[i]),
         .name = name,
         .arguments = absl::StrCat("{\"", kProbeTextKey, "\": \"", kProbeTexts[i], "\", \"",
                                   kProbeNumberKey, "\": ", kProbeNumbers[i], "}")});
  }
  return message;
}

class Prober {
 public:
  explicit Prober(const ChatTemplate& chat_template) : template_(chat_template) {}

  // The whole text of a conversation; empty: refused.
  std::string Render(const ChatMessage& said, const ChatTools& tools) const {
    const ChatMessage asked = {.role = "user", .content = "Strata-User"};
    auto prompt =
        template_.Render({asked, said}, tools, absl::UnixEpoch(), {.ends_with_opening = false});
    return prompt.ok() ? std::move(prompt->text) : std::string();
  }

  std::optional<ToolCallForm> Calls(string_view eos) const {
    for (const ChatTools& tools : {ProbeTools(), ChatTools()}) {
      for (const bool named_ids : {false, true}) {
        const std::string words =
            Render({.role = "assistant", .content = std::string(kProbeWords)}, tools);
        const std::string one = Render(ProbeCalls(1, named_ids), tools);
        const std::string two = Render(ProbeCalls(2, named_ids), tools);
        if (words.empty() || one.empty() || two.size() > kProbeBytesMax) continue;
        const string_view one_said = Said(one, words, eos);
        auto form = LearnToolCallForm(one_said, two.empty() ? "" : Said(two, words, eos));
        if (form) return form;
      }
    }
    return std::nullopt;
  }

 private:
  // The assistant's part of a conversation, without what begins and ends every message.
  static string_view Said(string_view text, string_view words, string_view eos) {
    size_t from = 0;
    while (from < std::min(text.size(), words.size()) && text[from] == words[from]) ++from;
    const size_t content = words.rfind(kProbeWords);
    if (content == string_view::npos) return text;
    if (from < content) {
      // Both go on with a tag of another name: it begins at its bracket.
      const size_t tag = text.substr(0, from).find_last_of("<[");
      if (tag != string_view::npos &&
          text.substr(tag, from - tag).find_first_of(">]") == string_view::npos) {
        from = tag;
      }
    }
    from = std::min(from, content);
    string_view said = text.substr(from);
    const string_view end = words.substr(content + kProbeWords.size());
    if (!end.empty() && absl::EndsWith(said, end)) said.remove_suffix(end.size());
    for (const string_view mark : kEnds) said = said.substr(0, said.find(mark));
    if (!eos.empty()) said = said.substr(0, said.find(eos));
    return said;
  }

  const ChatTemplate& template_;
};

// A thought before the calls, which the template may show empty, is no part of them.
void CutThought(const ThoughtForm& thoughts, ToolCallForm* form) {
  std::string* const first = form->section_open.empty() ? &form->call_open : &form->section_open;
  const size_t at = first->rfind(thoughts.close);
  if (at == std::string::npos) return;
  const std::string rest(
      absl::StripLeadingAsciiWhitespace(string_view(*first).substr(at + thoughts.close.size())));
  *first = rest;
}

}  // namespace

ChatFormat LearnChatFormat(const ChatTemplate& chat_template, const ChatTemplate::Source& source) {
  const Prober prober(chat_template);
  const std::string thought = prober.Render({.role = "assistant",
                                             .content = std::string(kProbeWords),
                                             .reasoning = std::string(kProbeThought)},
                                            {});
  const std::string plain =
      prober.Render({.role = "assistant", .content = std::string(kProbeWords)}, {});
  ChatFormat format = {
      .is_harmony = IsHarmony(source.text),
      .thoughts = LearnThoughtForm({.thought = thought, .plain = plain}, source.text),
      .calls = {}};
  if (format.is_harmony) {
    format.calls = HarmonyToolCalls();
    return format;
  }
  auto calls = prober.Calls(source.eos);
  format.calls = calls ? *std::move(calls) : ToolCallFormNamedIn(source.text);
  CutThought(format.thoughts, &format.calls);
  return format;
}

std::string EncodeChatFormat(const ChatFormat& format) {
  const Json json = {{"harmony", format.is_harmony},
                     {"thought_open", format.thoughts.open},
                     {"thought_close", format.thoughts.close},
                     {"thought_close_text", format.thoughts.close_text},
                     {"thought_taught", format.thoughts.is_taught},
                     {"calls", EncodeToolCallForm(format.calls)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ChatFormat DecodeChatFormat(string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  ChatFormat format = {.thoughts = LearnThoughtForm({}, ""), .calls = KnownToolCallForms()[0]};
  if (!json.is_object()) return format;
  const auto read = [&json](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto is_set = [&json](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && *found == true;
  };
  format.is_harmony = is_set("harmony");
  ThoughtForm thoughts = {.open = read("thought_open"),
                          .close = read("thought_close"),
                          .close_text = read("thought_close_text"),
                          .is_taught = is_set("thought_taught")};
  if (!thoughts.close.empty()) format.thoughts = std::move(thoughts);
  if (auto calls = DecodeToolCallForm(read("calls"))) format.calls = *std::move(calls);
  return format;
}

std::vector<std::string> MarksOf(const ChatFormat& format, bool with_calls) {
  if (format.is_harmony) return HarmonyMarks();
  std::vector<std::string> marks = {format.thoughts.open, format.thoughts.close};
  if (!with_calls) return marks;
  for (std::string& mark : MarksOf(format.calls)) marks.push_back(std::move(mark));
  for (const ToolCallForm& form : KnownToolCallForms()) {
    for (std::string& mark : MarksOf(form)) marks.push_back(std::move(mark));
  }
  // No control token is without brackets.
  std::erase_if(
      marks, [](const std::string& mark) { return mark.find_first_of("<[") == std::string::npos; });
  std::sort(marks.begin(), marks.end());
  marks.erase(std::unique(marks.begin(), marks.end()), marks.end());
  return marks;
}

}  // namespace strata
