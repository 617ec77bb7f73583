// Options of the KV caches of stages: types of keys and values, flash attention, numbers of
// positions and checkpoints. The same in every stage of a plan. Pure functions, any thread: a
// model's limits are known from its header, before anything is loaded.
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
  uint32_t checkpoints = 0;     // saved states, where a cache cannot trim
  bool exact = false;           // see SchedulerPolicy::exact
};

inline constexpr uint32_t kCheckpointsMax = 1024;
// libllama rounds the cells of a cache, or of a stream of it, up to a multiple of this.
inline constexpr uint32_t kCachePadPositions = 256;

CacheOptions CacheOptionsOf(const wire::CacheSpec& spec);

// The ggml_type of that name. kInvalidArgument: not a type for caches; the message names `field`
// and the valid types.
absl::StatusOr<uint32_t> CacheType(absl::string_view field, absl::string_view name);
// A llama_flash_attn_type.
absl::StatusOr<int> FlashAttentionType(absl::string_view name);

// kInvalidArgument: unknown names, or options that this model does not support: heads that are no
// multiple of a quantised type's block, quantised values without flash attention, `kv_cells` for
// slots that cannot share a cache, or fewer than one sequence may take; too many checkpoints.
absl::Status CheckCacheOptions(const CacheOptions& options, uint32_t n_ctx, uint32_t n_seq_max,
                               const GgufHeader& header);

// Whether all slots share the cells of one cache: only where `kv_cells` are fewer than all slots
// may take. It is slower, since attention walks over the cells of all slots; with a stream of the
// cache for each slot, it walks over the sequence's own.
bool SharesCache(const CacheOptions& options, uint32_t n_ctx, uint32_t n_seq_max);

// Whether positions of keys of this type can be moved. libllama rotates quantised keys again only
// with the matrices that it makes for heads of multiples of 64, and crashes without them.
bool KeysCanShift(const CacheOptions& options, const GgufHeader& header);

// Positions of all slots together.
uint64_t CellsOf(const CacheOptions& options, uint32_t n_ctx, uint32_t n_seq_max);

}  // namespace strata
