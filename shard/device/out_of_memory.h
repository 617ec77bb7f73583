// How libraries below say that there was no memory: ggml's back ends throw or print what their
// drivers do, and no code says it. Pure functions; any thread.
#pragma once

#include <exception>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

// Whether an exception's or a dying process's words say so, of whichever memory.
bool SaysOutOfMemory(absl::string_view words);

// What a step that libllama broke off is to its caller: kResourceExhausted where memory was
// missing, else kInternal.
absl::Status FromLlamaException(const std::exception& thrown);

}  // namespace strata
