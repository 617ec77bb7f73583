// One text as a client gets it: whole characters only, and cut before the first stop string, which
// may come in pieces. What might still become a stop string is held back until it cannot. Pure.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace strata {

class TextShaper {
 public:
  // None of `stops` is empty.
  explicit TextShaper(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // The next token's bytes. Returns what can be shown now. Nothing once stopped().
  std::string Add(absl::string_view piece);
  // The text has ended: what was held back.
  std::string Finish();

  // A stop string has come.
  bool stopped() const { return stopped_; }
  // Tokens of which all that is shown has been shown; at the end those that show something.
  size_t tokens_shown() const { return tokens_shown_; }

 private:
  std::string Show(size_t bytes);

  const std::vector<std::string> stops_;
  std::string held_;         // at most a stop string and a character, less one byte each
  std::deque<size_t> ends_;  // where tokens end in the text, those not shown yet
  size_t bytes_ = 0;         // of all tokens
  size_t shown_ = 0;         // of those
  size_t last_end_ = 0;      // of the last token shown
  size_t tokens_shown_ = 0;
  bool stopped_ = false;
};

// The bytes at the end of `text` that begin a character without ending it; at most 3.
size_t UnfinishedUtf8Bytes(absl::string_view text);

}  // namespace strata
