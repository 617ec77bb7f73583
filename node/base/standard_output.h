// Writes the results of verbs.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

// Writes all of `text` at once, and flushes earlier output. kResourceExhausted: the disk is full;
// kUnknown: another error of stdout, now or in an earlier write.
absl::Status WriteToStdout(absl::string_view text);

}  // namespace strata
