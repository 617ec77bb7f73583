// What libllama derives from a model's header, compared between a slice and the model it is cut
// from. The table of architectures says what is known to change with the number or place of layers;
// this check is for what nobody knows yet, and runs at every load.
#pragma once

#include "absl/status/status.h"
#include "shard/model/gguf.h"

struct llama_model;

namespace strata {

// Both may be loaded without data. kFailedPrecondition names what differs, with both values. What
// the header gives by layer (`header` is the whole model's) differs by right and is passed over.
absl::Status CheckDerived(const llama_model* slice, const llama_model* whole,
                          const GgufHeader& header);

}  // namespace strata
