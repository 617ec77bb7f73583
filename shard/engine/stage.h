// One contiguous layer range of a model, loaded by libllama on one device. Lives in a worker
// process, because libllama aborts on inner errors; used by that worker's compute thread only.
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
  uint32_t n_batch = 512;  // rows of a batch at most
  uint32_t n_threads = 1;
  std::string device;             // as ggml names it; empty: CPU
  uint64_t memory_bytes_max = 0;  // to take of the device's memory; 0: all that is free
  // The routed experts of the first so many layers of the stage stay in the host's memory, and the
  // CPU computes them. Not read on the CPU.
  uint32_t n_cpu_moe = 0;
  uint64_t host_bytes_max = 0;  // as memory_bytes_max, of the host's for those experts
  CacheOptions cache;
  bool use_mmap = true;  // map the file where the slice is the whole model
};

// Not thread-safe; Load() and the calls after it come from one thread at a time.
class Stage {
 public:
  // (bytes read so far, bytes of the slice); false stops the load with kCancelled.
  using Progress = absl::AnyInvocable<bool(uint64_t done, uint64_t total)>;

  // Blocks. kInvalidArgument: the data is not what the header promised, or an option is wrong;
  // kResourceExhausted: not enough memory for weights, KV cache or compute buffer, with the bytes
  // (see ShortageOf()); nothing of it is kept;
  // kFailedPrecondition: the slice's derived hyperparameters differ from the whole model's;
  // kDataLoss, kUnavailable: Slice::ReadAt()'s.
  // libllama may abort the process on damaged data: that is why it is a worker's.
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
        output_rows;  // last stage only: rows whose logits are wanted, rising
  };

  // Runs the batch. Blocks for as long as it computes. kInvalidArgument: lengths, rows, slots,
  // token ids or positions out of range (a position must follow the last one in its slot);
  // kResourceExhausted: no room in the KV cache; kInternal: libllama failed;
  // kFailedPrecondition: the file that the stage has mapped has changed, so what it computed is of
  // no use, nor will the rest be. After an error the KV cache is as before the call, or the slots
  // of the batch have been dropped (kDataLoss). The last stage takes n_batch output_rows, or fewer
  // when their logits would exceed 64 MiB, but always n_seq_max.
  virtual absl::Status Decode(const Batch& batch) = 0;

  // Begins with the batch that most likely follows, so that it is under way when Decode() gets it;
  // any call that changes or reads the caches undoes it, and is as if it had not been. Only of a
  // stage that is the whole model, on a device that computes while its host does something else,
  // with caches that can be brought back; else, and where it fails, nothing is begun. Whether it
  // is.
  virtual bool BeginLookahead(const Batch& /*batch*/) { return false; }
  // Whether the last Decode() found its batch begun.
  virtual bool UsedLookahead() const { return false; }

  // Every stage but the last, after Decode(): [n_tokens, n_embd] f32, rows in batch order.
  virtual Payload TakeActivations() = 0;

  // Called with what a layer gives, [n_tokens, n_embd] f32; the next layer takes what it leaves
  // there. `layers_end` is one past the layer, as the model counts.
  using LayerWatch = std::function<void(uint32_t layers_end, absl::Span<float> rows)>;
  // Runs the batch as Decode() would if the stage were empty, beside its caches, which it neither
  // reads nor changes, and calls `watch` behind every layer but the last. Returns what comes out:
  // the activations, or the logits of `output_rows`. Blocks. kUnimplemented: such stages cannot;
  // kResourceExhausted: no memory for that; else as Decode().
  virtual absl::StatusOr<std::vector<float>> DecodeApart(const Batch& /*batch*/,
                                                         const LayerWatch& /*watch*/) {
    return absl::UnimplementedError("it cannot compute beside its caches");
  }

  // Last stage, after Decode(): [n_vocab] of output_rows[i], valid until the next call.
  virtual absl::Span<const float> Logits(size_t i) = 0;

  // One KV edit. A SHIFT goes down, reaches the end of the slot, and forgets what stood in
  // [begin + delta, begin): positions have no gaps. kUnimplemented: this cache cannot (checked
  // before libllama would abort), and nothing changed; kInvalidArgument: slot or positions out of
  // range; kNotFound: a RESTORE of what is not kept, and nothing changed; kDataLoss: one that
  // failed, and the slot is dropped.
  virtual absl::Status Apply(const wire::KvEdit& edit) = 0;

  // Empties all slots and forgets what SAVE has kept: as it was when it had been loaded.
  virtual void Clear() = 0;

  // What a slot holds. Another version: what was there before is not any more, or is elsewhere.
  struct Held {
    uint64_t version = 0;
    uint32_t positions = 0;
    bool operator==(const Held&) const = default;
  };
  virtual Held HeldIn(int32_t slot) const = 0;
  // What its caches hold of [begin, end), as libllama writes a sequence's state.
  struct CachePart {
    uint32_t begin = 0;
    uint32_t end = 0;
    std::string bytes;
  };
  // Whether a slot can be read in parts; else `begin` is 0, and all positions come at once.
  virtual bool SplitsCaches() const = 0;
  // From `begin` on, n_max positions at most. kInvalidArgument: nothing is there; kUnimplemented:
  // not in parts; kUnavailable: not before the next step; kResourceExhausted; kInternal.
  virtual absl::StatusOr<CachePart> ReadCache(int32_t slot, uint32_t begin, uint32_t n_max) = 0;
  // What was read of a stage of the same layers with the same caches follows what the slot holds,
  // or takes its place where `begin` is 0. kInvalidArgument: it does not follow; kDataLoss: it does
  // not fit into this stage, and the slot is dropped.
  virtual absl::Status WriteCache(int32_t slot, const CachePart& part) = 0;

  // First and last stage, else nullptr. Lives as long as the stage.
  virtual const llama_vocab* vocab() const = 0;

  struct Facts {
    LayerRange layers;
    bool is_first = false;
    bool is_last = false;
    uint32_t n_embd = 0;
    uint32_t n_vocab = 0;
    uint32_t n_ctx = 0;
    uint32_t n_ctx_train = 0;
    uint32_t n_seq_max = 0;
    uint32_t n_batch = 0;
    CacheAbility cache;
    uint64_t slice_bytes = 0;   // weights resident
    uint64_t host_bytes = 0;    // of those, in the host's memory: experts, libllama's embedding
    uint64_t device_bytes = 0;  // weights on the device, which may have a copy of the embedding
    uint64_t kv_bytes = 0;      // with what libllama keeps about each cell
    uint64_t kv_cells = 0;      // positions of all slots together
    uint32_t n_checkpoints = 0;
    uint64_t checkpoint_bytes = 0;  // that all of them take at most
    uint64_t compute_bytes = 0;     // with the rows that libllama copies out of a graph into the
                                    // machine's memory, where that is the device's
    uint32_t load_ms = 0;
  };
  virtual const Facts& facts() const = 0;
};

}  // namespace strata
