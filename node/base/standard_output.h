// What verbs print when they are done.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

// All of `text`, at once, behind what was printed before. kResourceExhausted: the disk is full;
// kUnknown: stdout does not take it otherwise, or did not take all that was printed before.
absl::Status WriteToStdout(absl::string_view text);

}  // namespace strata
