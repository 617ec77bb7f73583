// UTF-8 as it comes from files, programs and tokens: maybe invalid, maybe cut within a character.
// RFC 3629.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace strata {

// The size in bytes of the first character of `text`; 0: `text` is empty or begins with invalid
// UTF-8.
size_t Utf8CharacterBytes(absl::string_view text);

// The bytes at the end of `text` that begin a character without ending it; at most 3.
size_t UnfinishedUtf8Bytes(absl::string_view text);

// `text` with every byte that is not part of valid UTF-8 replaced by '?': protobuf strings must be
// UTF-8, and the output of a dying process may be cut anywhere.
std::string ValidUtf8(absl::string_view text);

// Turns token pieces into text: a character whose bytes come in several tokens is held back until
// it is complete.
class Utf8Stream {
 public:
  // Returns the bytes that can be shown now. Bytes that are not UTF-8 are passed on unchanged.
  std::string Add(absl::string_view piece);
  // Returns the rest at the end, complete or not.
  std::string Flush();

 private:
  std::string pending_;  // at most 3 bytes
};

}  // namespace strata
