// Reads OpenAI's harmony, the form of gpt-oss, while it comes: messages in channels, of which
// "analysis" is thought, "final" is said, and those to a function are its calls. Pure; not
// thread-safe.
//
//   <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…
//   <|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
//
// The form: https://github.com/openai/harmony, docs/format.md
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "node/chat/tool_call_reader.h"

namespace strata {

// Whether a template writes harmony.
bool IsHarmony(absl::string_view chat_template);
// The marks of harmony, all of them control tokens.
std::vector<std::string> HarmonyMarks();
// The grammar's side of it: calls, without the mark behind them, which ends the generation.
ToolCallForm HarmonyToolCalls();

class HarmonyReader {
 public:
  // `prompt`: its end tells whether a message has begun. `tools`: those offered.
  HarmonyReader(absl::string_view prompt, std::vector<ReadableTool> tools);

  struct Piece {
    std::string thought;
    ToolPiece tools;
  };
  Piece Add(absl::string_view text);
  Piece Finish();

  bool in_thought() const { return to_ == To::kThought; }
  // Whether something else than thoughts has begun.
  bool answers() const { return answers_; }
  // Bytes of the output up to the end of the last thought; 0: none has ended.
  size_t thought_end() const { return thought_end_; }
  uint32_t calls() const { return calls_; }

 private:
  enum class To { kHeader, kThought, kContent, kCall };

  bool Read(Piece* piece);
  void ReadHeader(absl::string_view header, Piece* piece);
  void Emit(absl::string_view text, Piece* piece);
  void Skip(size_t bytes);

  const std::vector<ReadableTool> tools_;
  To to_ = To::kHeader;
  std::string pending_;
  std::string name_;  // of the call whose arguments have not begun
  size_t read_ = 0;   // bytes of the output before pending_
  size_t thought_end_ = 0;
  uint32_t calls_ = 0;
  bool answers_ = false, had_thought_ = false;
};

}  // namespace strata
