// One generation's output as its client gets it: whole characters only, and cut before the first
// stop string, which may come in pieces. Output that might still become a stop string is held back
// until it cannot. Pure.
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
    size_t tokens_min = 0;           // no stop string begins within so many tokens
  };
  explicit StopStringFilter(Options options) : options_(std::move(options)) {}

  // Adds the next token's bytes. Returns the output that can be shown now; nothing once stopped().
  std::string Add(absl::string_view piece);
  // Ends the output. Returns the bytes that were held back.
  std::string Finish();

  // True once a stop string has come.
  bool stopped() const { return stopped_; }
  const std::string& stop() const { return stop_; }  // which; empty: none
  // Tokens whose shown bytes have all been returned; at the end those that show something.
  size_t tokens_shown() const { return tokens_shown_; }

 private:
  std::string Show(size_t bytes);

  const Options options_;
  std::string held_;         // at most a stop string and a character, less one byte each
  std::deque<size_t> ends_;  // offsets at which tokens end in the output, those not shown yet
  size_t bytes_ = 0;         // of all tokens
  size_t shown_ = 0;         // of those
  size_t last_end_ = 0;      // of the last token shown
  size_t tokens_ = 0;
  size_t tokens_shown_ = 0;
  bool stopped_ = false;
  std::string stop_;
};

// Counts the characters of a string that comes in pieces, as JSON shows it: invalid UTF-8 is one
// U+FFFD for each incomplete character. Pure.
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

}  // namespace strata
