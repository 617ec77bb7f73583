// Tool calls as models write them: the form that a model's template teaches, the grammar of such
// calls, and a reader that finds them in the output while it comes. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "node/grammar/json_schema_grammar.h"

namespace strata {

enum class ToolForm {
  kTagged,   // <tool_call>{"name":…,"arguments":{…}}</tool_call>, as Hermes and Qwen; described in
             // words where a template has no tools
  kBare,     // {"name":…,"parameters":{…}}, as Llama 3
  kMistral,  // [TOOL_CALLS][{"name":…,"arguments":{…}}]
};
// Guesses the form from the template's text.
ToolForm ToolFormOf(absl::string_view chat_template);

struct CallableTool {
  std::string name;
  std::string parameters;  // a JSON Schema's text; empty: any object
  std::string path;        // of the schema, for errors
};
// The grammar of one call of one of the tools, or of several calls.
absl::StatusOr<GbnfExpr> ToolCallGrammar(ToolForm form, const std::vector<CallableTool>& tools,
                                         bool several, JsonGrammar* grammar);

// The next piece of the output: content, or pieces of calls. `index` counts the calls.
struct ToolPiece {
  std::string content;
  struct Call {
    uint32_t index = 0;
    std::string name;       // with its first piece only
    std::string arguments;  // the next bytes of them
  };
  std::vector<Call> calls;
};

// Not thread-safe.
class ToolReader {
 public:
  struct Options {
    ToolForm form = ToolForm::kTagged;
    std::vector<std::string> names;  // of the offered tools; a call of another tool is content
    uint32_t calls_max = 0;          // 0: no limit
  };
  explicit ToolReader(Options options) : options_(std::move(options)) {}

  // Adds the next bytes of the output; returns what can be emitted now.
  ToolPiece Add(absl::string_view text);
  // Ends the output; returns what was held back.
  ToolPiece Finish();

  uint32_t calls() const { return calls_; }
  // True once there are `calls_max` complete calls.
  bool done() const { return options_.calls_max > 0 && complete_ >= options_.calls_max; }

 private:
  enum class In { kText, kBetween, kCall, kBehind };
  // Parser state of a call's object, which is read byte by byte.
  struct Object {
    std::string raw;  // with the mark before it
    std::string key;  // of the current member
    std::string name;
    std::string quoted;  // the current string, with its escapes
    int depth = 0;
    bool in_string = false, escaped = false, is_key = true, has_name = false;
    size_t arguments_at = 0;       // in raw; 0: not yet
    size_t arguments_emitted = 0;  // end of the emitted bytes in raw
    bool arguments_over = false;
    bool is_text = false;  // the arguments are in a string
    bool emitted = false;  // the call's first piece
    bool closed = false;   // all arguments are emitted
  };

  void Take(char c, ToolPiece* out);
  void TakeText(char c, ToolPiece* out);
  void TakeCall(char c, ToolPiece* out);
  void EndArguments(ToolPiece* out);
  void Emit(ToolPiece* out);
  void GiveUp(ToolPiece* out);
  absl::string_view Mark() const;
  bool Knows(const std::string& name) const;

  const Options options_;
  In in_ = In::kText;
  std::string held_;    // bytes that may become a mark
  bool began_ = false;  // the output has more than spaces
  Object object_;
  uint32_t calls_ = 0, complete_ = 0;
};

}  // namespace strata
