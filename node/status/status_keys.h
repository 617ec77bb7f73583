// The keys of `strata status --watch`, from the bytes that a terminal sends. No input or output of
// its own; one thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace strata {

enum class Key { kQuit, kUp, kDown, kPageUp, kPageDown, kHome, kEnd };

class KeyReader {
 public:
  // The keys that `bytes` complete; others are skipped.
  std::vector<Key> Read(absl::string_view bytes);

  // Whether an Esc waits for what may follow it: arrows begin with one. When nothing has come for a
  // moment, Flush() tells that it was the key itself.
  bool escape_waits() const { return sequence_ == "\x1b"; }
  std::vector<Key> Flush();

 private:
  // A longer sequence is none.
  static constexpr size_t kSequenceBytesMax = 16;

  std::string sequence_;  // begun with Esc and not complete
};

}  // namespace strata
