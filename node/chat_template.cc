#include "node/chat_template.h"

#include <exception>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "minja/minja.hpp"
#include "transport/grpc_status.h"

namespace strata {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kErrorBytesMax = 300;

// The template's own words, of one line; minja adds the place with several lines of source.
std::string Words(const std::exception& error) {
  std::string words = error.what();
  words = words.substr(0, words.find(" at row "));
  words = absl::StrReplaceAll(words, {{"\n", " "}, {"\r", ""}});
  if (words.size() > kErrorBytesMax) words = words.substr(0, kErrorBytesMax) + "…";
  return ValidUtf8(words);
}

// Content as parts, where a template knows no other.
struct Shape {
  bool typed = false;
  bool system_in_user = false;  // the template knows no system messages
};

Json MessageOf(const std::string& role, const std::string& content, const std::string& name,
               const Shape& shape) {
  Json message = {{"role", role}};
  if (shape.typed) {
    message["content"] = Json::array({{{"type", "text"}, {"text", content}}});
  } else {
    message["content"] = content;
  }
  if (!name.empty()) message["name"] = name;
  return message;
}

Json MessagesOf(const std::vector<ApiMessage>& messages, const Shape& shape) {
  Json json = Json::array();
  std::string system;
  for (const ApiMessage& message : messages) {
    if (shape.system_in_user && message.role == "system") {
      absl::StrAppend(&system, system.empty() ? "" : "\n", message.content);
      continue;
    }
    std::string content = message.content;
    if (!system.empty() && message.role == "user") {
      content = absl::StrCat(system, "\n\n", content);
      system.clear();
    }
    json.push_back(MessageOf(message.role, content, message.name, shape));
  }
  if (!system.empty()) json.push_back(MessageOf("user", system, "", shape));
  return json;
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
          absl::StrCat("the model's chat template cannot be read: ", Words(error)));
    }
    // What it makes of its messages shows in what becomes of these.
    const std::vector<ApiMessage> user = {{.role = "user", .content = "Strata-User"}};
    const std::vector<ApiMessage> both = {{.role = "system", .content = "Strata-System"}, user[0]};
    const auto shows = [this](const std::vector<ApiMessage>& messages, absl::string_view needle) {
      const auto prompt = Apply(messages, absl::UnixEpoch());
      return prompt.ok() && absl::StrContains(*prompt, needle);
    };
    if (!shows(user, "Strata-User")) {
      shape_.typed = true;
      if (!shows(user, "Strata-User")) shape_.typed = false;
    }
    shape_.system_in_user = shows(user, "Strata-User") && !shows(both, "Strata-System");
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<Prompt> RenderAll(const std::vector<ApiMessage>& messages,
                                   absl::Time now) const override {
    auto text = Apply(messages, now);
    if (!text.ok()) return text.status();
    Prompt prompt = {.text = *std::move(text)};
    prompt.has_bos = !bos_.empty() && absl::StartsWith(prompt.text, bos_);
    return prompt;
  }

  absl::StatusOr<std::string> Apply(const std::vector<ApiMessage>& messages, absl::Time now) const {
    try {
      const auto context = minja::Context::make(minja::Value(
          Json{{"messages", MessagesOf(messages, shape_)}, {"add_generation_prompt", true}}));
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
      return absl::InvalidArgumentError(
          absl::StrCat("the model's chat template does not take these messages: ", Words(error)));
    }
  }

  std::string bos_, eos_;
  std::shared_ptr<minja::TemplateNode> root_;  // minja's own way
  Shape shape_;
};

absl::StatusOr<std::shared_ptr<const ChatTemplate>> ChatTemplate::Parse(const Source& source) {
  auto parsed = std::make_shared<Impl>();  // shared by requests
  if (absl::Status status = parsed->Init(source); !status.ok()) return status;
  return parsed;
}

absl::StatusOr<ChatTemplate::Prompt> ChatTemplate::Render(const std::vector<ApiMessage>& messages,
                                                          absl::Time now) const {
  return RenderAll(messages, now);
}

}  // namespace strata
