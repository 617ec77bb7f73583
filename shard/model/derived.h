// Compares the values that libllama derives from a header between a slice and the model it is cut
// from. The table of architectures has the known changes with the number or place of layers; this
// check catches unknown ones, and runs at every load.
#pragma once

#include "absl/status/status.h"
#include "shard/model/gguf.h"

struct llama_model;

namespace strata {

// Both may be loaded without data. kFailedPrecondition names the difference, with both values.
// Values that the header gives by layer (`header` is the whole model's) may differ and are ignored.
absl::Status CheckDerived(const llama_model* slice, const llama_model* whole,
                          const GgufHeader& header);

}  // namespace strata
