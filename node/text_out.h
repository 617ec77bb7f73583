// A text on stdout as it comes, character by character. One thread.
#pragma once

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "node/utf8_stream.h"

namespace strata {

class TextOut {
 public:
  // False: nobody reads it any more.
  bool Write(absl::string_view piece) { return Put(utf8_.Add(piece)); }
  // The line's end. kUnavailable: some of the text could not be written.
  absl::Status Finish() {
    Put(utf8_.Flush() + "\n");
    return ok_ ? absl::OkStatus() : absl::UnavailableError("cannot write the text to stdout");
  }

 private:
  bool Put(const std::string& text) {
    ok_ = ok_ && std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
          std::fflush(stdout) == 0;
    return ok_;
  }

  Utf8Stream utf8_;
  bool ok_ = true;
};

}  // namespace strata
