// A text on stdout as it comes, character by character. One thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "node/base/standard_output.h"
#include "node/base/utf8_stream.h"

namespace strata {

class GeneratedOutput {
 public:
  // False: nobody reads it any more.
  bool Write(absl::string_view piece) { return Put(utf8_.Add(piece)); }
  // The line's end. As WriteToStdout(): some of the text could not be written.
  absl::Status Finish() {
    Put(utf8_.Flush() + "\n");
    return written_;
  }

 private:
  bool Put(const std::string& text) {
    if (written_.ok()) written_ = WriteToStdout(text);
    return written_.ok();
  }

  Utf8Stream utf8_;
  absl::Status written_;
};

}  // namespace strata
