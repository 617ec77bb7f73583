// Token pieces to text: a character whose bytes come in several tokens is held back until it is
// whole.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace strata {

class Utf8Stream {
 public:
  // The bytes that can be shown now. What is not UTF-8 is passed on as it is.
  std::string Add(absl::string_view piece);
  // What is left at the end, whole or not.
  std::string Flush();

 private:
  std::string held_;  // at most 3 bytes
};

}  // namespace strata
