// Reads from stdin: the prompt of `strata run`, and answers to questions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

inline constexpr size_t kStdinPromptBytesMax = 16 * 1024 * 1024;

// Returns all of stdin, without the end of its last line. Blocks until it ends. kInvalidArgument:
// it is empty, is no UTF-8 or has more than kStdinPromptBytesMax; else the system's reason.
absl::StatusOr<std::string> ReadPromptFromStdin();

// Asks on stderr, and returns whether the next line of stdin is "y" or "yes", in any case.
bool Confirm(absl::string_view question);

}  // namespace strata
