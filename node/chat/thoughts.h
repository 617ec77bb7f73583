// What a model thinks, apart from what it answers: the marks around a thought, as its template
// shows them, and a reader that splits the output while it comes. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace strata {

// What a template is tried with.
inline constexpr absl::string_view kProbeThought = "Strata-Thought", kProbeWords = "Strata-Words";

struct ThoughtForm {
  std::string open, close;  // without spaces around them; `close` is never empty
  std::string close_text;   // `close` with the spaces that the template puts around it
  bool is_taught = false;   // the template shows thoughts; else the model may have some

  // Whether a prompt ends within a thought, which the model then goes on with.
  bool IsOpenIn(absl::string_view prompt) const;
  // Whether the model may begin its answer to this prompt with a thought: the prompt has not ended
  // one already.
  bool MayFollow(absl::string_view prompt) const;
  bool operator==(const ThoughtForm&) const = default;
};

struct ThoughtProbe {
  // A message of the assistant that has kProbeThought as its thought and kProbeWords as its
  // content, and one without the thought; empty where the template refuses it.
  absl::string_view thought, plain;
};
// Known marks that the template's own text has are next, <think> is last. A thought without a mark
// before it has an empty `open`: all output begins with one.
ThoughtForm LearnThoughtForm(const ThoughtProbe& rendered, absl::string_view chat_template);

// Not thread-safe.
class ThoughtSplitter {
 public:
  struct Options {
    ThoughtForm form;
    bool begins_open = false;  // the prompt ends within a thought
    // False: nothing is a thought, say because this output goes on behind one.
    bool splits = true;
  };
  explicit ThoughtSplitter(Options options);

  // The next piece of the output. Spaces around a thought are in neither.
  struct Piece {
    std::string thought, content;
  };
  Piece Add(absl::string_view text);
  // Ends the output; returns what was held back.
  Piece Finish();

  // Whether the output so far ends within a thought.
  bool in_thought() const { return in_ == In::kThought; }
  // Whether the answer has begun, behind a thought or without one.
  bool answers() const { return in_ == In::kContent; }
  // Bytes of the output up to the end of the thought's closing mark; 0: no thought has ended.
  size_t thought_end() const { return thought_end_; }

 private:
  enum class In { kStart, kThought, kBehind, kContent };

  bool Read(Piece* piece);

  const Options options_;
  In in_ = In::kStart;
  std::string pending_;
  size_t read_ = 0;  // bytes of the output before pending_
  size_t thought_end_ = 0;
  bool any_ = false;  // the thought has more than spaces
  bool had_thought_ = false;
};

}  // namespace strata
