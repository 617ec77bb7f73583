// Decodes the keys of `strata status --watch` from the bytes that a terminal sends. No input or
// output of its own; one thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace strata {

enum class Key { kQuit, kUp, kDown, kPageUp, kPageDown, kHome, kEnd };

class KeyReader {
 public:
  // Returns the keys that `bytes` complete; unknown ones are skipped.
  std::vector<Key> Read(absl::string_view bytes);

  // True after an Esc that may begin a sequence, such as that of an arrow. When nothing has
  // followed for a moment, Flush() returns Esc as the key itself.
  bool escape_waits() const { return sequence_ == "\x1b"; }
  std::vector<Key> Flush();

 private:
  // Longer sequences are dropped.
  static constexpr size_t kSequenceBytesMax = 16;

  std::string sequence_;  // begun with Esc and not complete
};

}  // namespace strata
