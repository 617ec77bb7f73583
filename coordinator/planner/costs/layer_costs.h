// The costs of each layer of a model on any device: bytes of weights that stay in memory, bytes
// that one step reads, KV cache, and the activations between stages. From the header alone; the
// cost model (cost_model.h) turns it into seconds on a device. Pure functions; any thread.
//
// Where a header leaves something open, the costlier reading is taken: all experts are read when it
// does not say how many are used, layers whose window is not known keep every position, a layer
// that is not plainly without attention has a KV cache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "shard/model/architecture.h"
#include "shard/model/gguf.h"

namespace strata {

// Weights of one ggml type.
struct TypedBytes {
  uint32_t type = 0;  // ggml_type
  uint64_t bytes = 0;
  bool operator==(const TypedBytes&) const = default;
};

// ggml's name of a type, for the types that devices are measured with ("q4_K"); "" for others.
std::string TypeName(uint32_t type);
// 4.5 for q4_K; 0 for a type that does not exist.
double BitsPerWeight(uint32_t type);

struct LayerCost {
  uint64_t weight_bytes = 0;        // resident
  std::vector<TypedBytes> dense;    // read by every step: attention, norms, shared experts …
  std::vector<TypedBytes> experts;  // routed experts, all of them
  uint32_t n_expert = 0;
  uint32_t n_expert_used = 0;  // by one token; n_expert when not known
  // KV cache.
  uint64_t kv_bytes_per_position = 0;
  uint32_t window = 0;       // positions that it sees at most; 0: all
  uint32_t kv_sharing = 1;   // query heads that read the same keys and values
  uint64_t state_bytes = 0;  // of a sequence, whatever its length (recurrent layers)
  uint32_t n_ops = 0;        // operations of the graph, about

  // Different experts that `rows` tokens touch, on average: n(1 - (1 - k/n)^rows), as if each token
  // drew its k of n anew and evenly.
  double ExpertsTouched(double rows) const;
  uint64_t ExpertBytes() const;  // all of them
};

struct LayerCostsOptions {
  // Types of the cache, as in StageOptions: "" is f16; f32, q8_0, q4_0.
  std::string type_k;
  std::string type_v;
  bool unverified = false;  // as CutRuleFor
};

// The costs of a model.
struct LayerCosts {
  std::string architecture;
  std::vector<LayerCost> layers;  // [n_layer], those for multi-token prediction (not run) included
  uint32_t n_embd = 0;
  uint32_t n_vocab = 0;
  uint32_t n_head = 0;
  uint32_t n_ff = 0;  // widest row between the matrices of a feed-forward block, active experts
                      // of a token together
  uint64_t first_bytes = 0;  // token embedding and what else lies outside the layers: first stage
  uint64_t last_bytes = 0;   // norm and head: last stage (tied: the embedding again)
  uint64_t tied_bytes = 0;   // counted in both, held once by a stage that is the whole model
  uint64_t embedding_bytes = 0;  // of the token embedding alone, part of first_bytes
  // Placeholders of the other end's matrix (shard/model/slice.h).
  uint64_t first_placeholder_bytes = 0;
  uint64_t last_placeholder_bytes = 0;
  std::vector<TypedBytes> head;  // read for each step by the last stage
  uint32_t kv_type = 1;          // ggml_type of the keys

  uint32_t n_layer() const { return static_cast<uint32_t>(layers.size()); }

  // Bytes outside the layers, in a stage at these ends: vocabulary, placeholders.
  uint64_t EndBytes(bool is_first, bool is_last) const;
  // Bytes that the slice `range` (not empty) has in memory.
  uint64_t WeightBytes(LayerRange range) const;
};

// kInvalidArgument: the header lacks the architecture, the block count or the embedding length, or
// the type of a cache is unknown.
absl::StatusOr<LayerCosts> CountLayerCosts(const GgufHeader& header,
                                           const LayerCostsOptions& options);

// Implausible figures of a header count as this; sums of it do not overflow.
inline constexpr uint64_t kBytesOfLayerMax = 1ull << 50;

// The caches of `n_seqs` sequences of `n_ctx` positions, of which up to `n_batch` come in one step.
struct CacheShape {
  uint32_t n_ctx = 4096;
  uint32_t n_seqs = 1;
  uint32_t n_batch = 512;
  uint64_t kv_cells = 0;       // positions of all sequences together; 0: n_ctx for each
  uint32_t n_checkpoints = 0;  // states that are kept in addition
  bool flash_attention = true;
  bool exact = false;  // SchedulerPolicy::exact

  uint64_t cells() const { return kv_cells != 0 ? kv_cells : uint64_t{n_ctx} * n_seqs; }
  // As SharesCache(): one cache for all sequences; else one for each.
  bool shares_cells() const { return cells() < uint64_t{n_ctx} * n_seqs; }
};
uint64_t CacheBytes(const LayerCost& layer, const CacheShape& shape);

// Bytes of the graph's activations, masks and logits, and of the worker that holds them; an upper
// estimate. `is_last`: with logits.
uint64_t ComputeBytes(const LayerCosts& costs, const CacheShape& shape, bool is_last);

// Bytes that a stage of `layers` (not empty) on a device with memory of its own still has in the
// machine's memory.
struct MachineBytes {
  uint64_t weights = 0;  // the token embedding or its placeholder: libllama looks rows up there
  uint64_t compute = 0;  // logits as they are handed over
  uint64_t all() const { return weights + compute; }
};
MachineBytes MachineBytesOf(const LayerCosts& costs, const CacheShape& shape, LayerRange layers);

// Bytes that a stage of `layers` (not empty) takes on its device: weights, caches, compute buffer.
uint64_t StageBytes(const LayerCosts& costs, const CacheShape& shape, LayerRange layers,
                    bool has_own_memory);

}  // namespace strata
