// What verbs print when they are done.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

// All of `text`, at once. kUnavailable: stdout does not take it (a full disk, a reader that left).
absl::Status WriteToStdout(absl::string_view text);

}  // namespace strata
