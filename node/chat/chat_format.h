// How a model writes thoughts and tool calls, learned from its chat template: from its text, and
// from what it makes of a conversation with a known thought and known calls. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "node/chat/chat_template.h"
#include "node/chat/thoughts.h"
#include "node/chat/tool_call_form.h"

namespace strata {

struct ChatFormat {
  bool is_harmony = false;  // gpt-oss: channels (harmony_reader.h), not the thoughts' marks
  ThoughtForm thoughts;
  ToolCallForm calls;
};

// Renders a few short conversations, which the template may refuse.
ChatFormat LearnChatFormat(const ChatTemplate& chat_template, const ChatTemplate::Source& source);

// As one line of JSON, and back. Text that is none gives the form that models without a template
// get: Hermes' calls, <think>.
std::string EncodeChatFormat(const ChatFormat& format);
ChatFormat DecodeChatFormat(absl::string_view json);

// The form's marks, some of which may be control tokens, which are shown in the output for the
// reader (wire::SamplerSettings).
std::vector<std::string> MarksOf(const ChatFormat& format, bool with_calls);

}  // namespace strata
