// A stage run by libllama: a model, its context, and the state of each slot of the KV cache.
// Stage::Load() in stage.cc makes it. Used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "llama.h"
#include "shard/engine/slot_streams.h"
#include "shard/engine/stage.h"
#include "shard/model/architecture.h"

namespace strata {

struct LlamaModelDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct LlamaContextDeleter {
  void operator()(llama_context* context) const { llama_free(context); }
};
using LlamaModelPtr = std::unique_ptr<llama_model, LlamaModelDeleter>;
using LlamaContextPtr = std::unique_ptr<llama_context, LlamaContextDeleter>;

class LlamaStage final : public Stage {
 public:
  struct Config {
    Facts facts;
    CacheAbility ability;
    // Where activations enter (see InputTensor() in architecture.h); empty: as llama_batch.embd.
    std::string input_tensor;
    std::string output_tensor;               // where the stage ends, if it is not the last
    std::vector<std::string> layer_tensors;  // where its layers end, all but the last
    llama_context_params params = {};        // of its context, without a callback
    uint32_t n_outputs_max = 0;
    // libllama runs graphs of equally many rows per sequence (row_groups.h).
    bool has_equal_graphs = false;
    // Each slot has a stream of the cache of its own (slot_streams.h).
    bool has_streams = false;
    // Graphs of more rows than n_unpooled_max end in pooled embeddings, for which libllama keeps no
    // row of logits for every row, and makes a new graph every step; other graphs are reused.
    bool pools_embeddings = false;
    uint32_t n_unpooled_max = 0;
    bool has_vocabulary = false;
    // The model's files where libllama has mapped them: a write to a file changes the weights.
    // Shared with the slice. Null: nothing is mapped.
    std::shared_ptr<const ModelFile> mapped;
    bool is_async = false;  // the device computes while its host does something else
  };

  LlamaStage(Config config, LlamaModelPtr model);

  // Whether the context needs OnTensor.
  bool watches_tensors() const { return !config_.facts.is_last || !config_.input_tensor.empty(); }
  // ggml_backend_sched_eval_callback; `user_data` is the stage.
  static bool OnTensor(ggml_tensor* tensor, bool ask, void* user_data);

  llama_model* model() { return model_.get(); }
  Facts* mutable_facts() { return &config_.facts; }
  // REQUIRES: called before any other method.
  void SetContext(LlamaContextPtr context) { context_ = std::move(context); }
  // As Clear(), and overwrites the contents of the caches.
  void Erase();
  // How many graphs were reused. For tests.
  int32_t n_graphs_reused() const { return llama_perf_context(context_.get()).n_reused; }

  absl::Status Decode(const Batch& batch) override;
  bool BeginLookahead(const Batch& batch) override;
  bool UsedLookahead() const override { return used_lookahead_; }
  Payload TakeActivations() override;
  absl::StatusOr<std::vector<float>> DecodeApart(const Batch& batch,
                                                 const LayerWatch& watch) override;
  absl::Span<const float> Logits(size_t i) override;
  absl::Status Apply(const wire::KvEdit& edit) override;
  void Clear() override;
  Held SlotStateOf(int32_t slot) const override;
  bool SplitsCaches() const override { return KeepsEveryPosition(); }
  absl::StatusOr<CachePart> ReadCache(int32_t slot, uint32_t begin, uint32_t n_max) override;
  absl::Status WriteCache(int32_t slot, const CachePart& part) override;
  void SetKvStore(std::unique_ptr<KvStore> store) override;
  std::shared_ptr<KvStore> kv_store() const override { return store_; }
  std::vector<KvName> StoredBlocks() const override;
  std::vector<KvName> TakeLostBlocks() override;
  const llama_vocab* vocab() const override;
  const Facts& facts() const override { return config_.facts; }

 private:
  absl::Status Check(const Batch& batch) const;
  // kFailedPrecondition: the mapped files are not what they were.
  absl::Status CheckMapped() const {
    return config_.mapped == nullptr ? absl::OkStatus() : config_.mapped->CheckUnchanged();
  }
  // Each position has cells of its own, as neither recurrent states nor windows have: a cache can
  // be rolled back, and split by positions.
  bool KeepsEveryPosition() const {
    return config_.ability.trim && llama_model_n_swa(model_.get()) <= 0;
  }
  // Rows that are run together. Where they are embedded, all are.
  struct Group {
    std::vector<uint32_t> rows;
    bool is_embedded = false;
  };
  // The rows of the batch in parts with as many outputs as a graph may have; those of a slot in
  // order.
  std::vector<Group> PartsOf(const Batch& batch) const;
  // The rows of each graph.
  std::vector<Group> GroupsOf(const Batch& batch) const;
  // All rows, in one graph or several.
  absl::Status RunAll(const Batch& batch);
  // Waits until the device is done. Errors as of Decode().
  absl::Status Synchronize();
  // True: the batch is the one that was begun ahead, and is done. Else undoes the lookahead.
  bool FinishLookahead(const Batch& batch);
  void UndoLookahead();
  // Runs a group of the batch as one call of libllama.
  absl::Status Run(const Batch& batch, const Group& group);
  // Copies the logits of `rows` to the order of the batch.
  void KeepLogits(const Batch& batch, absl::Span<const uint32_t> rows);
  // Whether graphs end in the states of all their rows.
  void SetEmbedded(bool is_embedded);
  // Shows the observed rows of the group, which the last graph had.
  absl::Status Show(const Batch& batch, const Group& group);
  // The activations of `rows`, one after the other.
  absl::Span<const float> Incoming(const Batch& batch, absl::Span<const uint32_t> rows);
  // How many rows the tensor has, [rows, n_embd] f32; 0, with boundary_error_, when it is not as
  // expected or has more than `rows_left`.
  size_t RowsOf(const ggml_tensor* tensor, size_t rows_left);
  // False when the tensor is not as expected; the graph is stopped then.
  bool WriteInput(ggml_tensor* tensor);
  void TakeBoundary(const ggml_tensor* tensor);
  // Whether watch_ is called with the tensor.
  bool IsWatched(const ggml_tensor* tensor) const;
  void CallWatch(ggml_tensor* tensor);

  // Rolls the slots of a failed batch back to their state before it; kDataLoss when one had to be
  // dropped.
  absl::Status RollBack(const Batch& batch, absl::Status why);
  // Whether positions from `begin` on can be removed without losing any that position `begin`
  // attends to.
  bool CanTrim(int32_t slot, int32_t begin) const;
  // Whether the cache still has all positions that position `begin` attends to.
  bool HasWindowBefore(int32_t slot, int32_t begin) const;
  bool TrimTo(int32_t slot, int32_t begin);
  void Drop(int32_t slot);
  absl::Status CheckSlot(int32_t slot) const;
  // Gives the slot a new version: its earlier contents are gone.
  void Changed(int32_t slot) { versions_[slot] = ++last_version_; }
  // libllama's name of the slot's sequence, which is the number of its stream, too.
  llama_seq_id Sequence(int32_t slot) const { return streams_.Of(slot); }
  // Makes the streams of the batch's slots adjacent once that costs no more than what the graphs
  // of earlier steps have cost in excess. Errors only where a slot was dropped (kDataLoss).
  absl::Status GatherStreams(const Batch& batch);
  absl::Status ExchangeStreams(SlotStreams::Exchange exchange);
  // All of a slot's state. kResourceExhausted: it takes more than `bytes_max`, or than is free;
  // kInternal.
  absl::StatusOr<std::string> ReadState(int32_t slot, uint64_t bytes_max = UINT64_MAX);
  // Replaces the slot's state; what fails leaves it empty (kDataLoss).
  absl::Status WriteState(int32_t slot, absl::string_view state, uint32_t n_positions);
  absl::Status Trim(int32_t slot, int32_t begin);
  absl::Status Copy(int32_t slot, int32_t from);
  absl::Status Shift(const wire::KvEdit& edit);
  void Save(const wire::KvEdit& edit);
  absl::Status Restore(const wire::KvEdit& edit);
  // The blocks that the edit stores, by its names.
  absl::StatusOr<std::vector<std::string>> ReadBlocks(const wire::KvEdit& edit,
                                                      absl::Span<const KvName> names);
  void StoreBlocks(const wire::KvEdit& edit);
  void UseBlocksBefore(const wire::KvEdit& store, absl::Span<const KvName> names);
  absl::Status LoadBlocks(const wire::KvEdit& edit);
  llama_memory_t memory() const { return llama_get_memory(context_.get()); }

  Config config_;
  const std::string boundary_;  // name of the tensor where the stage ends
  const int n_pos_per_row_;     // positions libllama wants for a row of activations
  LlamaModelPtr model_;
  LlamaContextPtr context_;  // destroyed before the model

  std::vector<int32_t> next_;       // [n_seq_max] position that follows the last one in each slot
  std::vector<uint64_t> versions_;  // [n_seq_max] Held::version
  uint64_t last_version_ = 0;
  SlotStreams streams_;
  uint64_t excess_bytes_ = 0;  // of weights that were read again for streams that were not adjacent
  // Slots were shifted or copied: the next batch rotates the keys, and copies the streams.
  struct PendingEdits {
    bool shifts = false;
    bool copies = false;
    bool any() const { return shifts || copies; }
  };
  PendingEdits pending_;
  const LayerWatch* watch_ = nullptr;  // in DecodeApart()

  // The slot's state that ReadCache() takes parts of; no bytes: none.
  struct ReadSlot {
    int32_t slot = 0;
    Held held;
    std::string bytes;
  };
  ReadSlot read_;

  // The state of a sequence of `length` positions in the parts of the cache that forget: recurrent
  // states and windows. The part that every position keeps stays in its slot.
  struct Checkpoint {
    int32_t length = 0;  // 0: nothing is kept
    std::vector<uint8_t> bytes;
  };
  std::vector<Checkpoint> checkpoints_;  // [n_checkpoints], of checkpoint_bytes together

  std::shared_ptr<KvStore> store_;   // as kv_store(); may be null
  std::vector<KvName> lost_blocks_;  // since TakeLostBlocks(), but for those of store_
  // [n_seq_max] the blocks that each slot's sequence begins with, as they were stored or loaded.
  std::vector<std::vector<KvName>> slot_blocks_;

  // The batch that BeginLookahead() has begun; no tokens: none. next_ does not include it.
  struct LookaheadBatch {
    std::vector<int32_t> tokens, positions, slots;
    std::vector<uint32_t> output_rows;
  };
  LookaheadBatch lookahead_;
  bool used_lookahead_ = false;

  // State of the batch that runs or ran last.
  std::shared_ptr<float[]> out_;  // [n_tokens, n_embd] f32, rows in batch order
  size_t out_rows_ = 0;
  // The rows that run, in the order in which libllama takes them, in one graph or several.
  absl::Span<const uint32_t> rows_;
  absl::Span<const float> in_;  // the values for input_tensor
  size_t rows_in_ = 0;          // of in_ that were written
  size_t rows_out_ = 0;         // of rows_ that arrived at the boundary
  std::string boundary_error_;
  std::vector<uint32_t> output_rows_;  // last stage
  std::vector<uint32_t> graph_rows_;   // of each row in its only graph; empty: the same order
  std::vector<float> kept_logits_;     // [output_rows, n_vocab] of several graphs
  bool is_embedded_ = false;           // as SetEmbedded()
  std::vector<int32_t> token_;         // columns of llama_batch, reused to avoid allocations
  std::vector<int32_t> position_;
  std::vector<int32_t> n_slot_;
  std::vector<int32_t> slot_;
  std::vector<int32_t*> slot_pointer_;
  std::vector<int8_t> is_output_;
  std::vector<float> scratch_;  // incoming rows, where they must be gathered
};

}  // namespace strata
