// Calls of tools as models write them: which form a model's template teaches, the grammar of such
// calls, and a reader that finds them in a text while it comes. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "node/grammar/json_schema_grammar.h"

namespace strata {

enum class ToolForm {
  kTagged,   // <tool_call>{"name":…,"arguments":{…}}</tool_call>, as Hermes and Qwen; asked for in
             // words where a template knows no tools
  kBare,     // {"name":…,"parameters":{…}}, as Llama 3
  kMistral,  // [TOOL_CALLS][{"name":…,"arguments":{…}}]
};
// By what the template has in it.
ToolForm ToolFormOf(absl::string_view chat_template);

struct CallableTool {
  std::string name;
  std::string parameters;  // a JSON Schema's text; empty: any object
  std::string path;        // of the schema, for errors
};
// One call of one of the tools, or several.
absl::StatusOr<GbnfExpr> ToolCallGrammar(ToolForm form, const std::vector<CallableTool>& tools,
                                         bool several, JsonGrammar* grammar);

// The next of a text: words, or a piece of a call. `index` counts the calls.
struct ToolPiece {
  std::string content;
  struct Call {
    uint32_t index = 0;
    std::string name;       // with its first piece only
    std::string arguments;  // the next of them
  };
  std::vector<Call> calls;
};

// Not thread-safe.
class ToolReader {
 public:
  struct Options {
    ToolForm form = ToolForm::kTagged;
    std::vector<std::string> names;  // of the tools there are; a call of another is a text's words
    uint32_t calls_max = 0;          // 0: as many as there are
  };
  explicit ToolReader(Options options) : options_(std::move(options)) {}

  // The next bytes of the text; returns what can be told of them.
  ToolPiece Add(absl::string_view text);
  // The text has ended: what was held back.
  ToolPiece Finish();

  uint32_t calls() const { return calls_; }
  // It has as many calls as were wanted.
  bool done() const { return options_.calls_max > 0 && complete_ >= options_.calls_max; }

 private:
  enum class In { kText, kBetween, kCall, kBehind };
  // Where a call's object is, read byte by byte.
  struct Object {
    std::string raw;  // with the mark before it
    std::string key;  // of the member that is read
    std::string name;
    std::string quoted;  // the string that is read, as it stands
    int depth = 0;
    bool in_string = false, escaped = false, is_key = true, has_name = false;
    size_t arguments_at = 0;  // in raw; 0: not yet
    size_t arguments_told = 0;
    bool arguments_over = false;
    bool is_text = false;  // arguments in a string
    bool told = false;     // that there is a call
    bool closed = false;   // all of its arguments
  };

  void Take(char c, ToolPiece* out);
  void TakeText(char c, ToolPiece* out);
  void TakeCall(char c, ToolPiece* out);
  void EndArguments(ToolPiece* out);
  void Tell(ToolPiece* out);
  void GiveUp(ToolPiece* out);
  absl::string_view Mark() const;
  bool Knows(const std::string& name) const;

  const Options options_;
  In in_ = In::kText;
  std::string held_;    // may become a mark
  bool began_ = false;  // other than spaces
  Object object_;
  uint32_t calls_ = 0, complete_ = 0;
};

}  // namespace strata
