// Turns token pieces into text: a character whose bytes come in several tokens is held back until
// it is complete.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace strata {

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
