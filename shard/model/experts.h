// The routed experts of a stage's layers may stay in the host's memory, computed by the CPU, while
// the rest of each layer is on another device (llama.cpp's --n-cpu-moe). These functions find their
// tensors. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "shard/model/architecture.h"
#include "shard/model/gguf.h"

namespace strata {

// "blk.3.ffn_up_exps.weight" is one, "blk.3.ffn_up_shexp.weight" (every token passes it) is not.
bool IsExpertTensor(absl::string_view name);

// Bytes of those tensors in `layers`.
uint64_t ExpertBytes(const GgufHeader& header, LayerRange layers);

// Matches the experts' tensors in layers [0, n_layer), as a regular expression for
// llama_model_tensor_buft_override.
std::string ExpertPattern(uint32_t n_layer);

}  // namespace strata
