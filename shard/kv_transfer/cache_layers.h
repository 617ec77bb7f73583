// Splits a sequence's state by layers and joins such parts, so that a stage can take over the
// caches of stages with other layer ranges.
//
// The bytes are libllama's (llama_state_seq_get_data()), whose only specification is what its
// src/llama-kv-cache.cpp writes: of a cache that all sequences share and that has all layers, for
// each cell its position, then the keys' rows of each layer, then the values' rows or columns. Any
// other bytes are refused.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "shard/model/architecture.h"

namespace strata {

// Extracts `layers`, counted from the state's first one, of a state of `n_layers` layers, sorted by
// position. kUnimplemented: not such a state, or no such layers; kResourceExhausted: no memory.
absl::StatusOr<std::string> LayersOf(absl::string_view state, uint32_t n_layers, LayerRange layers);

// Joins the layers of all `states`, results of LayersOf(), in order. kInvalidArgument: a state is
// no such result, or has other positions or another layout than the first (values in columns come
// from a context without flash attention); kResourceExhausted: no memory.
absl::StatusOr<std::string> JoinLayers(absl::Span<const absl::string_view> states);

}  // namespace strata
