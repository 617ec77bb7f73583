// Finds tool calls in a model's output while it comes: content and calls apart, the arguments as
// they come. Pure; no byte of the output is trusted.
//
//   content ─ a mark ─▶ head ─ the name of a tool ─▶ arguments ─▶ behind ─ no further call ─▶
//   content
//                        └─ else: content
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "node/chat/chat_message.h"
#include "node/chat/tool_call_arguments.h"
#include "node/chat/tool_call_form.h"
#include "node/chat/tool_call_object.h"

namespace strata {

// The next piece of the output: content, or pieces of calls. `index` counts the calls.
struct ToolPiece {
  std::string content;
  struct Call {
    uint32_t index = 0;
    std::string name;       // with its first piece only
    std::string arguments;  // the next bytes of them
  };
  std::vector<Call> calls;

  void AddCall(Call call);  // joins pieces of one call
};

// A tool as the reader of calls needs it.
struct ReadableTool {
  std::string name;
  std::vector<ToolParameter> parameters;  // empty: not known
};
std::vector<ReadableTool> ReadableTools(const ChatTools& tools);

// Not thread-safe.
class ToolCallReader {
 public:
  struct Options {
    // The model's own form, and others that it may fall into.
    std::vector<ToolCallForm> forms;
    std::vector<ReadableTool> tools;  // those offered; a call of another one is content
    uint32_t calls_max = 0;           // 0: no limit
  };
  explicit ToolCallReader(Options options);
  ToolCallReader(const ToolCallReader&) = delete;
  ToolCallReader& operator=(const ToolCallReader&) = delete;

  // Adds the next bytes of the output; returns what can be emitted now.
  ToolPiece Add(absl::string_view text);
  // Ends the output; returns what was held back. `is_cut`: at the limit of tokens, so that a call
  // that had only begun is dropped instead of shown.
  ToolPiece Finish(bool is_cut);

  uint32_t calls() const { return calls_; }
  // True once there are `calls_max` complete calls.
  bool done() const { return options_.calls_max > 0 && complete_ >= options_.calls_max; }

 private:
  enum class In { kContent, kHead, kObject, kArguments, kBehind };
  // A way in which a form's call may begin.
  struct Opening {
    const ToolCallForm* form;
    std::string mark;      // without spaces around it; empty: the call has none
    std::string run;       // the mark's first run
    bool is_whole = true;  // it opens a section or a call of its own, not a further call
  };
  struct Head {
    MarkMatch match = MarkMatch::kNo;
    const ToolCallForm* form = nullptr;
    const ReadableTool* tool = nullptr;  // null: an object of JSON follows
    size_t end = 0;                      // where the object or the arguments begin
  };

  // Each does what it can with pending_; false: more has to come.
  bool ReadContent(ToolPiece* out);
  bool ReadHead(ToolPiece* out);
  bool ReadObject(ToolPiece* out);
  bool ReadArguments(ToolPiece* out);
  bool ReadBehind(ToolPiece* out);

  Head MatchHead(absl::string_view text, bool is_further) const;
  Head MatchName(const Opening& opening, absl::string_view text, size_t at) const;
  Head MatchArguments(const Head& named, absl::string_view text) const;
  void Begin(const Head& head, ToolPiece* out);
  void Emit(std::string name, std::string arguments, ToolPiece* out);
  void EmitContent(size_t bytes, ToolPiece* out);

  const Options options_;
  std::vector<Opening> openings_;  // by form
  std::string first_bytes_;        // of the openings' marks
  bool has_bare_ = false;
  In in_ = In::kContent;
  std::string pending_;                 // not read yet
  bool began_ = false;                  // the output has more than spaces
  const ToolCallForm* form_ = nullptr;  // of the call that is read
  std::optional<ToolCallObjectReader> object_;
  std::unique_ptr<ToolArgumentsReader> arguments_;
  bool named_ = false;  // the object's call has been emitted
  uint32_t calls_ = 0, complete_ = 0;
};

}  // namespace strata
