// One text as a client gets it: whole characters only, and cut before the first stop string, which
// may come in pieces. What might still become a stop string is held back until it cannot. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace strata {

class StopStringFilter {
 public:
  struct Options {
    std::vector<std::string> stops;  // none is empty
    bool show_stop = false;          // the stop string is shown, too
    size_t tokens_min = 0;           // a stop string may begin behind so many tokens only
  };
  explicit StopStringFilter(Options options) : options_(std::move(options)) {}

  // The next token's bytes. Returns what can be shown now. Nothing once stopped().
  std::string Add(absl::string_view piece);
  // The text has ended: what was held back.
  std::string Finish();

  // A stop string has come.
  bool stopped() const { return stopped_; }
  const std::string& stop() const { return stop_; }  // which; empty: none
  // Tokens of which all that is shown has been shown; at the end those that show something.
  size_t tokens_shown() const { return tokens_shown_; }

 private:
  std::string Show(size_t bytes);

  const Options options_;
  std::string held_;         // at most a stop string and a character, less one byte each
  std::deque<size_t> ends_;  // where tokens end in the text, those not shown yet
  size_t bytes_ = 0;         // of all tokens
  size_t shown_ = 0;         // of those
  size_t last_end_ = 0;      // of the last token shown
  size_t tokens_ = 0;
  size_t tokens_shown_ = 0;
  bool stopped_ = false;
  std::string stop_;
};

// Counts the characters of a text that comes in pieces, as JSON shows it: what is no UTF-8 is a
// U+FFFD for each character that is not whole. Pure.
class CharacterCount {
 public:
  void Add(absl::string_view bytes);
  // The character that `next` begins at, or inside of.
  uint64_t PositionOf(absl::string_view next) const;
  uint64_t begun() const { return begun_; }  // characters, the last one perhaps not whole

 private:
  uint64_t begun_ = 0;
  int missing_ = 0;                         // bytes of the last character
  unsigned char low_ = 0x80, high_ = 0xBF;  // what the next of them may be
};

// The bytes at the end of `text` that begin a character without ending it; at most 3.
size_t UnfinishedUtf8Bytes(absl::string_view text);

}  // namespace strata
