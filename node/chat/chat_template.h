// A model's chat template: Jinja as its file ships it, rendered by Jinja2 (jinja_template.h) from
// what Hugging Face's tokenizers pass to it. Thread-safe after Parse().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "node/chat/chat_message.h"

namespace strata {

// The largest prompt that a template may render.
inline constexpr size_t kChatPromptBytesMax = 32 * 1024 * 1024;

class ChatTemplate {
 public:
  struct Source {
    std::string text;
    std::string bos, eos;  // the text of either token

    // Different sources have different keys.
    std::string Key() const;
  };
  // kInvalidArgument: the template cannot be parsed, and why. kResourceExhausted: it needs more
  // memory than there is. kUnavailable: Jinja2 cannot be loaded.
  static absl::StatusOr<std::shared_ptr<const ChatTemplate>> Parse(const Source& source);

  struct RenderOptions {
    // The prompt ends with the opening of the assistant's message, which the model then writes.
    bool ends_with_opening = true;
    // The prompt ends where the text of the last message does, an assistant's, and the model
    // continues that message.
    bool continues_last = false;
    std::string variables = {};  // more variables: the text of a JSON object, or empty
  };
  struct Prompt {
    std::string text;
    bool has_bos = false;  // `text` begins with the BOS token's text
    // The template has no form for tools: they, calls and results are told in words of our own.
    bool tools_in_words = false;
    // How the model writes thoughts and calls, for DecodeChatFormat() (chat_format.h). Set by the
    // template process.
    std::string format = {};
  };
  // Renders a prompt for the assistant's next message, unless `options` say otherwise. Where the
  // template refuses the messages, they are changed in ways that leave what they say
  // (template_messages.h, MessageFit), if it then takes them.
  // kInvalidArgument: the template refuses these messages, with its own message, or leaves out the
  // one that is to be continued. kResourceExhausted: as of Parse().
  absl::StatusOr<Prompt> Render(const std::vector<ChatMessage>& messages, const ChatTools& tools,
                                absl::Time now, const RenderOptions& options) const;
  absl::StatusOr<Prompt> Render(const std::vector<ChatMessage>& messages, const ChatTools& tools,
                                absl::Time now) const {
    return Render(messages, tools, now, {});
  }

  virtual ~ChatTemplate() = default;

 private:
  class Impl;
  ChatTemplate() = default;
  virtual absl::StatusOr<Prompt> RenderAll(const std::vector<ChatMessage>& messages,
                                           const ChatTools& tools, absl::Time now,
                                           const RenderOptions& options) const = 0;
};

}  // namespace strata
