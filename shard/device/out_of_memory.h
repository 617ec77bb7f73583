// Detects out-of-memory errors of the libraries below: ggml's back ends throw or print their
// drivers' messages, without an error code. Pure functions; any thread.
#pragma once

#include <exception>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

// Whether the message of an exception or of a dying process reports a lack of memory, of any kind.
bool SaysOutOfMemory(absl::string_view words);

// The error of a step that libllama broke off: kResourceExhausted where memory was missing, else
// kInternal.
absl::Status FromLlamaException(const std::exception& thrown);

}  // namespace strata
