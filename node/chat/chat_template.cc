#include "node/chat/chat_template.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "node/chat/jinja_template.h"
#include "node/chat/template_messages.h"

namespace strata {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Calls = TemplateForm::Calls;

// Put behind the text of a message that is to be continued: the prompt ends there. Transformers'
// apply_chat_template finds the place in this way, too; by its text the message might be found in
// what the template writes behind it.
constexpr absl::string_view kContinueMark = "CONTINUE_FINAL_MESSAGE_TAG ";

absl::Status CutAtContinueMark(absl::string_view content, std::string* prompt) {
  const size_t at = prompt->rfind(absl::StripAsciiWhitespace(kContinueMark));
  if (at == std::string::npos) {
    return absl::InvalidArgumentError(
        "the model's chat template leaves out the last message, so it cannot be continued");
  }
  // A template that strips spaces around a message does so around the part that is given.
  const bool keeps_spaces = absl::StartsWith(absl::string_view(*prompt).substr(at), kContinueMark);
  prompt->resize(at);
  if (!keeps_spaces) {
    const absl::string_view spaces =
        content.substr(absl::StripTrailingAsciiWhitespace(content).size());
    if (absl::EndsWith(*prompt, spaces)) prompt->resize(at - spaces.size());
  }
  return absl::OkStatus();
}

// Messages that show the form that a template takes.
const std::vector<ChatMessage> kUser = {{.role = "user", .content = "Strata-User"}};
const std::vector<ChatMessage> kSystem = {{.role = "system", .content = "Strata-System"}, kUser[0]};
constexpr char kTool[] = "strata_tool", kOtherTool[] = "strata_other";
const std::vector<ChatToolCall> kTwoCalls = {
    {.id = "abcdefghi", .name = kTool, .arguments = R"({"strata_key":"x"})"},
    {.id = "abcdefghj", .name = kOtherTool, .arguments = R"({"strata_key":"y"})"}};
const std::vector<ChatToolCall> kOneCall = {kTwoCalls[0]};

ChatMessage AnswerTo(const ChatToolCall& call) {
  return {.role = "tool", .content = "Strata-Answer", .name = call.name, .call_id = call.id};
}

}  // namespace

class ChatTemplate::Impl final : public ChatTemplate {
 public:
  absl::Status Init(const Source& source) {
    bos_ = source.bos;
    eos_ = source.eos;
    auto parsed = JinjaTemplate::Parse(source.text);
    if (absl::IsInvalidArgument(parsed.status())) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model's chat template cannot be read: ", parsed.status().message()));
    }
    if (!parsed.ok()) return parsed.status();
    template_ = *std::move(parsed);
    // What a probe takes more memory for than there is, a prompt would, too.
    ProbeContent();
    ProbeCalls();
    return exhausted_;
  }

 private:
  // The prompt for these messages; unset: the template refuses them.
  std::optional<std::string> Probe(const std::vector<ChatMessage>& messages) {
    auto prompt = Apply(messages, {}, absl::UnixEpoch(), {});
    if (absl::IsResourceExhausted(prompt.status())) exhausted_ = prompt.status();
    return prompt.ok() ? std::optional(*std::move(prompt)) : std::nullopt;
  }
  bool Shows(const std::vector<ChatMessage>& messages, absl::string_view needle) {
    const auto prompt = Probe(messages);
    return prompt && absl::StrContains(*prompt, needle);
  }

  void ProbeContent() {
    if (!Probe(kUser)) {
      form_.null_tools = false;
      form_.null_tools = !Probe(kUser).has_value();
    }
    if (!Shows(kUser, "Strata-User")) {
      form_.typed = true;
      form_.typed = Shows(kUser, "Strata-User");
    }
    const auto with_system = Probe(kSystem);
    form_.system_in_user = with_system && absl::StrContains(*with_system, "Strata-User") &&
                           !absl::StrContains(*with_system, "Strata-System");
    for (const char* field : {"reasoning_content", "reasoning", "thinking"}) {
      if (!template_->UsesField(field)) continue;
      form_.reasoning = field;
      break;
    }
  }

  // The first of some conversations with calls that the template takes.
  std::optional<std::string> ProbeCalled(const std::vector<ChatToolCall>& calls) {
    const ChatMessage assistant = {.role = "assistant", .content = "", .calls = calls};
    std::vector<ChatMessage> answered = {kUser[0], assistant};
    for (const ChatToolCall& call : calls) answered.push_back(AnswerTo(call));
    const ChatMessage last = {.role = "assistant", .content = "Strata-Last"};
    std::vector<ChatMessage> ended = answered;
    ended.insert(ended.end(), {last, kUser[0]});
    for (const auto& messages :
         {answered, ended, {kUser[0], assistant}, {kUser[0], assistant, kUser[0]}}) {
      if (auto prompt = Probe(messages)) return prompt;
    }
    return std::nullopt;
  }

  // Sets the form of arguments; returns the conversation in it. Arguments are objects to Hugging
  // Face's tokenizers, and text to some templates, which would show an object as Python does, or
  // escape text again.
  std::optional<std::string> ProbeArguments() {
    form_.calls = Calls::kText;
    auto text = ProbeCalled(kOneCall);
    form_.calls = Calls::kObject;
    auto object = ProbeCalled(kOneCall);
    const bool as_object = object && absl::StrContains(*object, "strata_key") &&
                           !absl::StrContains(*object, "'strata_key':");
    const bool as_text = text && absl::StrContains(*text, R"("strata_key":)");
    if (as_object || (!as_text && (object || !text))) return object;
    form_.calls = Calls::kText;
    return text;
  }

  void ProbeCalls() {
    form_.tools = template_->UsesVariable("tools");
    form_.answers = true;
    std::optional<std::string> shown;
    const auto shows_call = [&shown] { return shown && absl::StrContains(*shown, kTool); };
    for (const bool null_content : {false, true}) {
      form_.null_content = null_content;
      shown = ProbeArguments();
      if (shows_call()) break;
    }
    if (!shows_call()) {
      form_.null_content = false;
      if (!form_.tools) form_.calls = Calls::kWords;
    }
    if (!form_.tools) form_.answers = shows_call() && absl::StrContains(*shown, "Strata-Answer");
    if (!shows_call()) return;
    const auto both = ProbeCalled(kTwoCalls);
    form_.one_call =
        both && absl::StrContains(*both, kTool) && !absl::StrContains(*both, kOtherTool);
  }

  absl::StatusOr<Prompt> RenderAll(const std::vector<ChatMessage>& given, const ChatTools& tools,
                                   absl::Time now, const RenderOptions& options) const override {
    std::vector<ChatMessage> messages = given;
    NameAnswers(&messages);
    if (tools.offered() && !form_.tools) DescribeTools(tools, &messages);
    if (options.continues_last) absl::StrAppend(&messages.back().content, kContinueMark);
    const MessageFit usual = {.one_call = form_.one_call,
                              .system = form_.system_in_user ? MessageFit::System::kInUser
                                                             : MessageFit::System::kAsGiven};
    auto text = Apply(Fitted(messages, usual), tools, now, options);
    for (const bool fills_tools : {false, true}) {
      if (!absl::IsInvalidArgument(text.status())) break;
      if (fills_tools && !(tools.offered() && form_.tools)) break;
      const ChatTools given_tools = fills_tools ? FilledTools(tools) : tools;
      std::vector<MessageFit> fits = FitsFor(messages);
      if (fills_tools) fits.insert(fits.begin(), usual);
      for (const MessageFit& fit : fits) {
        auto fitted = Apply(Fitted(messages, fit), given_tools, now, options);
        if (!fitted.ok()) continue;
        text = *std::move(fitted);
        break;
      }
    }
    if (!text.ok()) return text.status();
    if (options.continues_last) {
      if (absl::Status status = CutAtContinueMark(given.back().content, &*text); !status.ok())
        return status;
    }
    Prompt prompt = {.text = *std::move(text), .tools_in_words = !form_.tools};
    prompt.has_bos = !bos_.empty() && absl::StartsWith(prompt.text, bos_);
    return prompt;
  }

  absl::StatusOr<std::string> Apply(const std::vector<ChatMessage>& messages,
                                    const ChatTools& tools, absl::Time now,
                                    const RenderOptions& options) const {
    OrderedJson known = {{"documents", nullptr}};
    if (!options.variables.empty()) known.update(OrderedJson::parse(options.variables));
    known["messages"] = MessagesJson(messages, form_);
    if (form_.null_tools || (tools.offered() && form_.tools)) {
      known["tools"] = form_.tools ? ToolsJson(tools) : OrderedJson();
    }
    known["add_generation_prompt"] = options.ends_with_opening && !options.continues_last;
    known["bos_token"] = bos_;
    known["eos_token"] = eos_;
    auto text = template_->Render(known, now);
    if (absl::IsInvalidArgument(text.status())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the model's chat template does not take these messages: ", text.status().message()));
    }
    if (text.ok() && text->size() > kChatPromptBytesMax) {
      return absl::InvalidArgumentError("the prompt is too long");
    }
    return text;
  }

  std::string bos_, eos_;
  std::unique_ptr<const JinjaTemplate> template_;
  TemplateForm form_;
  absl::Status exhausted_;
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
