// A model's output as every dialect of the API needs it, while it comes: what it thinks, what it
// says, and which tools it calls. Pure; not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "node/chat/chat_format.h"
#include "node/chat/chat_message.h"
#include "node/chat/harmony_reader.h"
#include "node/chat/thoughts.h"
#include "node/chat/tool_call_reader.h"

namespace strata {

struct OutputPiece {
  std::string thought;
  ToolPiece tools;  // content and calls
};

class OutputReader {
 public:
  struct Options {
    ChatFormat format;
    // Both are read by the constructor: the prompt's end tells whether a thought has begun.
    absl::string_view prompt;
    const ChatTools* tools = nullptr;
    bool splits_thoughts = true;  // false: thoughts stay in the content
    bool begins_answer = false;   // the output goes on behind a thought
  };
  explicit OutputReader(Options options);
  OutputReader(const OutputReader&) = delete;
  OutputReader& operator=(const OutputReader&) = delete;

  OutputPiece Add(absl::string_view text);
  // `is_cut`: the output ends at the limit of tokens.
  OutputPiece Finish(bool is_cut);

  uint32_t calls() const;
  // True once there are as many calls as the request allows.
  bool done() const { return calls_.has_value() && calls_->done(); }
  bool in_thought() const;
  // Whether something else than a thought has begun.
  bool answers() const;
  // Bytes of the output up to the end of the last thought; 0: none has ended.
  size_t thought_end() const;

 private:
  OutputPiece Read(ThoughtSplitter::Piece split);

  std::variant<ThoughtSplitter, HarmonyReader> reader_;
  std::optional<ToolCallReader> calls_;  // where tools are offered
};

// What ends a thought when its budget is used, as the template would: the prompt, the thought and
// this are the prompt of the answer. `may_call`: the answer may be a call.
std::string ThoughtEnding(const ChatFormat& format, bool may_call);

// What follows a thought that the model has ended itself.
std::string BehindThought(const ChatFormat& format);

}  // namespace strata
