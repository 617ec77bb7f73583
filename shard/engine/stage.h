// One contiguous layer range of a model, loaded by libllama on one device. Lives in a worker
// process, because libllama aborts on internal errors; used by that worker's compute thread only.
//
// The first stage takes tokens, every later one the activations of the stage before it. Every stage
// but the last ends at the tensor l_out-(n-1), seen through llama_context_params.cb_eval, and never
// computes norm and head.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/frame.pb.h"
#include "shard/kv_store/kv_store.h"
#include "shard/model/architecture.h"
#include "shard/model/cache_options.h"
#include "shard/model/slice.h"
#include "transport/link/payload.h"

struct llama_vocab;

namespace strata {

struct StageOptions {
  uint32_t n_ctx = 512;  // positions per sequence
  uint32_t n_seq_max =
      1;  // slots; each has room for n_ctx positions, unless cache.kv_cells is less
  uint32_t n_batch = 512;  // most rows of a batch
  uint32_t n_threads = 1;
  std::string device;             // as ggml names it; empty: CPU
  uint64_t memory_bytes_max = 0;  // limit on the device's memory; 0: all that is free
  // The routed experts of the stage's first n_cpu_moe layers stay in the host's memory, and the CPU
  // computes them. Ignored on the CPU.
  uint32_t n_cpu_moe = 0;
  uint64_t host_bytes_max = 0;  // limit on the host's memory for those experts
  CacheOptions cache;
  bool use_mmap = true;  // map the file where the slice is the whole model
};

// Not thread-safe; Load() and the calls after it come from one thread at a time.
class Stage {
 public:
  // (bytes read so far, bytes of the slice); false stops the load with kCancelled.
  using Progress = absl::AnyInvocable<bool(uint64_t done, uint64_t total)>;

  // Blocks. kInvalidArgument: the data does not match the header, or an option is wrong;
  // kResourceExhausted: not enough memory for weights, KV cache or compute buffer, with the bytes
  // (see ShortageOf()); nothing stays allocated;
  // kFailedPrecondition: the slice's derived hyperparameters differ from the whole model's;
  // kDataLoss, kUnavailable: as Slice::ReadAt().
  // libllama may abort the process on damaged data, so this runs in a worker process.
  static absl::StatusOr<std::unique_ptr<Stage>> Load(const Slice& slice,
                                                     const StageOptions& options,
                                                     Progress progress);
  virtual ~Stage() = default;

  // Rows of one step, columns of equal length [n_tokens].
  struct Batch {
    absl::Span<const int32_t> tokens;     // first stage only
    absl::Span<const float> activations;  // [n_tokens, n_embd] f32, every stage but the first
    absl::Span<const int32_t> positions;
    absl::Span<const int32_t> slots;
    absl::Span<const uint32_t>
        output_rows;  // last stage only: rows whose logits are needed, rising
    // Last stage only: rows that `observe` sees, each list rising, none of them in two or in
    // output_rows.
    absl::Span<const uint32_t> scored_rows, embedded_rows;
    // Called by Decode() for each as it is computed, rising within a slot: with its logits,
    // [n_vocab], or, of an embedded row, its state behind the last norm, [n_embd_out]. Nothing of
    // them is kept, so there may be any number.
    std::function<void(uint32_t row, absl::Span<const float> output)> observe;
  };

  // Runs the batch. Blocks for as long as it computes. kInvalidArgument: lengths, rows, slots,
  // token ids or positions out of range (a position must follow the last one in its slot);
  // kResourceExhausted: no room in the KV cache; kInternal: libllama failed;
  // kFailedPrecondition: the stage's mapped file has changed, so this and all later results are
  // useless. After an error the KV cache is as before the call, or the slots
  // of the batch have been dropped (kDataLoss). The last stage takes n_batch output_rows, or fewer
  // when their logits would exceed 64 MiB, but always n_seq_max.
  virtual absl::Status Decode(const Batch& batch) = 0;

  // Begins the batch that most likely follows, so that it is in progress when Decode() gets it; any
  // call that changes or reads the caches undoes it without a trace. Returns whether it has begun:
  // only a stage that is the whole model, on an asynchronous device, with caches that can be rolled
  // back, can begin; on failure nothing is begun.
  virtual bool BeginLookahead(const Batch& /*batch*/) { return false; }
  // Whether the last Decode() got the batch that BeginLookahead() had begun.
  virtual bool UsedLookahead() const { return false; }

  // Every stage but the last, after Decode(): [n_tokens, n_embd] f32, rows in batch order.
  virtual Payload TakeActivations() = 0;

  // Called with a layer's output, [n_tokens, n_embd] f32, which it may change; the next layer takes
  // it from there. `layers_end` is one past the layer, as the model counts.
  using LayerWatch = std::function<void(uint32_t layers_end, absl::Span<float> rows)>;
  // Runs the batch as Decode() would if the stage were empty, without reading or changing its
  // caches, and calls `watch` after every layer but the last. Returns the output: the activations,
  // or the logits of `output_rows`. Blocks. kUnimplemented: not supported; kResourceExhausted: no
  // memory; else as Decode().
  virtual absl::StatusOr<std::vector<float>> DecodeApart(const Batch& /*batch*/,
                                                         const LayerWatch& /*watch*/) {
    return absl::UnimplementedError("this stage cannot compute without its caches");
  }

  // Last stage, after Decode(): [n_vocab] of output_rows[i], valid until the next call.
  virtual absl::Span<const float> Logits(size_t i) = 0;

  // Applies one KV edit. A SHIFT goes down, reaches the end of the slot, and removes positions
  // [begin + delta, begin): positions have no gaps. kUnimplemented: not supported by this cache
  // (checked before libllama would abort), nothing changed; kInvalidArgument: slot or positions out
  // of range; kNotFound: a RESTORE of a missing checkpoint, or a LOAD of missing blocks, nothing
  // changed; kResourceExhausted: no memory for a LOAD, nothing changed; kUnavailable: no LOAD
  // before the next step, nothing changed; kDataLoss: a RESTORE or a LOAD that failed, and the slot
  // is dropped.
  virtual absl::Status Apply(const wire::KvEdit& edit) = 0;

  // Empties all slots and drops all checkpoints: the state just after Load().
  virtual void Clear() = 0;

  // The state of a slot. A new version: its earlier contents are gone, or at other positions.
  struct Held {
    uint64_t version = 0;
    uint32_t positions = 0;
    bool operator==(const Held&) const = default;
  };
  virtual Held SlotStateOf(int32_t slot) const = 0;
  // Positions [begin, end) of a slot's caches, as libllama writes a sequence's state.
  struct CachePart {
    uint32_t begin = 0;
    uint32_t end = 0;
    std::string bytes;
  };
  // Whether a slot can be read in parts; else `begin` is 0, and all positions come at once.
  virtual bool SplitsCaches() const = 0;
  // Reads at most n_max positions from `begin` on. kInvalidArgument: nothing is there;
  // kUnimplemented: not in parts; kUnavailable: not before the next step; kResourceExhausted;
  // kInternal.
  virtual absl::StatusOr<CachePart> ReadCache(int32_t slot, uint32_t begin, uint32_t n_max) = 0;
  // Appends a part that was read from a stage of the same layers with the same caches to the slot,
  // or replaces the slot's contents where `begin` is 0. kInvalidArgument: the part does not follow;
  // kDataLoss: it does not fit into this stage, and the slot is dropped.
  virtual absl::Status WriteCache(int32_t slot, const CachePart& part) = 0;

  // From now on STORE and LOAD use this store: for blocks where SplitsCaches(), else for states.
  virtual void SetKvStore(std::unique_ptr<KvStore> /*store*/) {}
  // Null: there is none. Shared with calls that ask for what it keeps.
  virtual std::shared_ptr<KvStore> kv_store() const { return nullptr; }
  // Names of the blocks in the store, the least recently used first.
  virtual std::vector<KvName> StoredBlocks() const { return {}; }
  // The blocks that could not be kept, or are no longer there, since the last call.
  virtual std::vector<KvName> TakeLostBlocks() { return {}; }

  // First and last stage, else nullptr. Lives as long as the stage.
  virtual const llama_vocab* vocab() const = 0;

  struct Facts {
    LayerRange layers;
    bool is_first = false;
    bool is_last = false;
    uint32_t n_embd = 0;
    uint32_t n_embd_out = 0;                     // last stage
    wire::Pooling pooling = wire::POOLING_LAST;  // as the model's file says
    uint32_t n_vocab = 0;
    uint32_t n_ctx = 0;
    uint32_t n_ctx_train = 0;
    uint32_t n_seq_max = 0;
    uint32_t n_batch = 0;
    CacheAbility cache;
    uint64_t slice_bytes = 0;   // weights resident
    uint64_t host_bytes = 0;    // of slice_bytes, in the host's memory: experts, embedding
    uint64_t device_bytes = 0;  // weights on the device, which may have a copy of the embedding
    uint64_t kv_bytes = 0;      // including libllama's data for each cell
    uint64_t kv_cells = 0;      // positions of all slots together
    uint32_t n_checkpoints = 0;
    uint64_t checkpoint_bytes = 0;  // the most that all of them take
    uint32_t kv_blocks_max = 0;     // that the store has room for; 0: there is none
    uint64_t compute_bytes = 0;     // with the rows that libllama copies out of a graph into the
                                    // machine's memory, where that is the device's
    uint32_t load_ms = 0;
  };
  virtual const Facts& facts() const = 0;
};

}  // namespace strata
