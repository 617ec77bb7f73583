// The messages and tools of a chat as the JSON that a template sees: as Hugging Face's tokenizers
// pass them, in the form that the template takes. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "node/chat/chat_message.h"

namespace strata {

struct TemplateForm {
  bool typed = false;           // content is an array of parts
  bool system_in_user = false;  // the template leaves system messages out
  bool one_call = false;        // it leaves out all calls of a message but the first
  bool tools = false;           // it has a form for tools; else they are described in words
  bool null_tools =
      true;  // without tools the variable is null, as Transformers has it; else not set
  bool null_content = false;  // a message that only calls has no content
  enum class Calls { kWords, kText, kObject };
  Calls calls = Calls::kWords;                  // the form of the arguments of an assistant's calls
  bool answers = false;                         // it has a form for tools' messages
  const char* reasoning = "reasoning_content";  // the member that it reads thoughts from
};

nlohmann::ordered_json MessagesJson(const std::vector<ChatMessage>& messages,
                                    const TemplateForm& form);
// Those that are offered; null: none.
nlohmann::ordered_json ToolsJson(const ChatTools& tools);
// The same ones, each with a description and parameters, which some templates need.
ChatTools FilledTools(const ChatTools& tools);
// Adds the words that describe the offered tools to the first system message.
void DescribeTools(const ChatTools& tools, std::vector<ChatMessage>* messages);
// Sets the tool's name in tools' messages, which some templates need and clients leave out.
void NameAnswers(std::vector<ChatMessage>* messages);

// What is changed in messages that a template refuses. Each change has one way to be made.
struct MessageFit {
  bool short_ids = false;  // ids of calls have nine letters and digits, as Mistral's templates want
  bool one_call = false;   // a message with several calls is several messages
  enum class System {
    kAsGiven,
    kFirst,   // all system messages are one, the first message
    kInUser,  // their text begins the next message of the user
  };
  System system = System::kAsGiven;
  // What the assistant thought is left out of messages that have text and calls, too.
  bool fewer_thoughts = false;
};
std::vector<ChatMessage> Fitted(std::vector<ChatMessage> messages, const MessageFit& fit);
// All that change these messages, those that change less first.
std::vector<MessageFit> FitsFor(const std::vector<ChatMessage>& messages);

}  // namespace strata
