// A model's chat template: Jinja as its file ships it, rendered by minja. Thread-safe after
// Parse().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "node/chat/chat_message.h"

namespace strata {

// A prompt that a template made may have.
inline constexpr size_t kChatPromptBytesMax = 32 * 1024 * 1024;

class ChatTemplate {
 public:
  struct Source {
    std::string text;
    std::string bos, eos;  // the tokens' texts

    // Of two that are not alike, not the same.
    std::string Key() const;
  };
  // kInvalidArgument: the template is none that we can read, and why.
  static absl::StatusOr<std::shared_ptr<const ChatTemplate>> Parse(const Source& source);

  struct Wish {
    bool ends_with_opening =
        true;  // of the assistant's answer, which follows (false: nothing does)
    // The prompt ends where the text of the last message does, an assistant's, whose rest follows.
    bool continues_last = false;
    std::string variables = {};  // more for the template: the text of a JSON object, or nothing
  };
  struct Prompt {
    std::string text;
    bool has_bos = false;  // it begins with the token that begins a text
  };
  // The prompt that asks for the assistant's answer, as far as nothing else is wished for.
  // kInvalidArgument: the template refuses these messages, in its words, or does not show the one
  // that is to be gone on with.
  // Tools that are offered are told in the template's way, or in words where it has none, as are
  // calls and what tools answered.
  absl::StatusOr<Prompt> Render(const std::vector<ChatMessage>& messages, const ChatTools& tools,
                                absl::Time now, const Wish& wish) const;
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
                                           const Wish& wish) const = 0;
};

}  // namespace strata
