// Takes a sequence's state apart by layers or positions, and puts such parts together, so that a
// slot is moved in parts, and a stage can take over the caches of stages with other layer ranges.
//
// The bytes are libllama's (llama_state_seq_get_data()), whose only specification is what its
// src/llama-kv-cache.cpp writes: for each stream of the cache its number of cells, and for the one
// stream that has any, each cell's position, then the keys' rows of each layer, then the values'
// rows or columns. Any other bytes, such as those of windows and recurrent states, are refused.
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// Extracts positions [begin, end), sorted. kUnimplemented: not such a state, or positions are
// missing; kResourceExhausted: no memory.
absl::StatusOr<std::string> PositionsOf(absl::string_view state, uint32_t begin, uint32_t end);

// As PositionsOf() for `n_blocks` parts of `block_positions` each, the first from `begin` on; reads
// the state once.
absl::StatusOr<std::vector<std::string>> BlocksOf(absl::string_view state, uint32_t begin,
                                                  uint32_t block_positions, size_t n_blocks);

// Joins states of the same layers, whose positions rise from each to the next. kInvalidArgument:
// they do not, or have another layout than the first; kResourceExhausted: no memory.
absl::StatusOr<std::string> JoinPositions(absl::Span<const absl::string_view> states);

}  // namespace strata
