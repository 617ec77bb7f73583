// A sequence's state taken apart by layers and put together again, so that a stage takes over what
// stages of other layer ranges hold.
//
// The bytes are libllama's (llama_state_seq_get_data()), whose only specification is what its
// src/llama-kv-cache.cpp writes: of a cache that all sequences share and that has all layers, for
// each cell its position, then the keys' rows of each layer, then the values' rows or columns. What
// does not read as such to its last byte is refused.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "shard/model/architecture.h"

namespace strata {

// Of a state of `n_layers` layers those of `layers`, counted from the state's first one, with the
// positions rising. kUnimplemented: it is no such state, or has no such layers;
// kResourceExhausted: no memory.
absl::StatusOr<std::string> LayersOf(absl::string_view state, uint32_t n_layers, LayerRange layers);

// The layers of all `states`, which LayersOf() gave, one after the other. kInvalidArgument: one is
// not what it gives, or is of other positions than the first, or laid out otherwise (values in
// columns are those of a context without flash attention); kResourceExhausted: no memory.
absl::StatusOr<std::string> JoinLayers(absl::Span<const absl::string_view> states);

}  // namespace strata
