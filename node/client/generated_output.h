// Writes generated output to stdout as it comes, character by character. One thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "node/base/standard_output.h"
#include "transport/base/utf8.h"

namespace strata {

class GeneratedOutput {
 public:
  // False: stdout is not read any more.
  bool Write(absl::string_view piece) { return Put(utf8_.Add(piece)); }
  // Ends the line. Errors of WriteToStdout(): some of the output could not be written.
  absl::Status Finish() {
    Put(utf8_.Flush() + "\n");
    return status_;
  }

 private:
  bool Put(const std::string& text) {
    if (status_.ok()) status_ = WriteToStdout(text);
    return status_.ok();
  }

  Utf8Stream utf8_;
  absl::Status status_;
};

}  // namespace strata
