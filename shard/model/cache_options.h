// How stages keep what they have seen of their texts: types of keys and values, flash attention,
// how many positions and checkpoints. The same in every stage of a plan. Pure functions, any
// thread: what a model cannot do is known from its header, before anything is loaded.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/node.pb.h"
#include "shard/model/gguf.h"

namespace strata {

struct CacheOptions {
  std::string type_k;  // empty: f16; also f32, bf16, q8_0, q4_0
  std::string type_v;
  std::string flash_attention;  // empty: auto, which is libllama's choice for the device; on, off
  uint32_t kv_cells = 0;        // positions of all slots together; 0: n_ctx for each
  uint32_t checkpoints = 0;     // states that are kept, where a cache cannot trim
  bool exact = false;           // each slot has a cache of its own (SchedulerPolicy::exact)
};

inline constexpr uint32_t kCheckpointsMax = 1024;

CacheOptions CacheOptionsOf(const wire::CacheSpec& spec);

// A ggml_type. kInvalidArgument: no type for a cache, with those there are; `field` is named.
absl::StatusOr<uint32_t> CacheType(absl::string_view field, absl::string_view name);
// A llama_flash_attn_type.
absl::StatusOr<int> FlashAttentionType(absl::string_view name);

// kInvalidArgument: names that mean nothing, or what this model cannot do: heads that are no
// multiple of a quantised type's block, quantised values without flash attention, a cache of
// `kv_cells` shared by slots that each want their own, or with less room than one text may take;
// too many checkpoints.
absl::Status CheckCacheOptions(const CacheOptions& options, uint32_t n_ctx, uint32_t n_seq_max,
                               const GgufHeader& header);

// Whether all slots share one cache: a step that mixes decodes and chunks of prompts is one graph
// then, while with a cache for each slot libllama would cut it into graphs of equally many rows per
// slot, each reading all weights. Attention skips the cells of other slots. The exceptions are a
// model with two sets of rope factors, since libllama chooses by the size of a sequence's cache,
// which must not depend on the slots; and exact caches, since how many cells there are, and which
// of them are a sequence's, says in which order attention adds up.
bool SharesCache(const CacheOptions& options, const GgufHeader& header);

// Whether positions of keys of this type can be moved. libllama rotates quantised keys again only
// with the matrices that it makes for heads of multiples of 64, and crashes without them.
bool KeysCanShift(const CacheOptions& options, const GgufHeader& header);

// Positions of all slots together.
uint64_t CellsOf(const CacheOptions& options, uint32_t n_ctx, uint32_t n_seq_max);

}  // namespace strata
