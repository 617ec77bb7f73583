#include "shard/device/out_of_memory.h"

#include <new>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace strata {

bool SaysOutOfMemory(absl::string_view words) {
  return absl::StrContains(words, "bad_alloc") ||
         absl::StrContainsIgnoreCase(words, "out of memory") ||
         absl::StrContains(words, "insufficient memory") ||     // ggml, which aborts then
         absl::StrContains(words, "ErrorOutOfDeviceMemory") ||  // Vulkan
         absl::StrContains(words, "ErrorOutOfHostMemory") ||
         absl::StrContainsIgnoreCase(words, "cannot allocate memory");
}

absl::Status FromLlamaException(const std::exception& thrown) {
  if (dynamic_cast<const std::bad_alloc*>(&thrown) != nullptr) {
    return absl::ResourceExhaustedError("no memory to compute the batch");
  }
  if (SaysOutOfMemory(thrown.what())) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory to compute the batch: ", thrown.what()));
  }
  return absl::InternalError(absl::StrCat("libllama: ", thrown.what()));
}

}  // namespace strata
