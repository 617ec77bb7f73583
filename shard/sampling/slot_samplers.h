// The samplers of the sequences that are open on the last stage, one a slot, and what pools their
// embeddings or scores their prompts, kept in step with the KV edits. Used by the compute thread
// only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/frame.pb.h"
#include "shard/sampling/embedding_pool.h"
#include "shard/sampling/prompt_scores.h"
#include "shard/sampling/sampler.h"

namespace strata {

// Not thread-safe.
class SlotSamplers {
 public:
  // `vocab` outlives this. `pooling`: the model's own.
  SlotSamplers(uint32_t n_seq_max, const llama_vocab* vocab, wire::Pooling pooling)
      : slots_(n_seq_max), vocab_(vocab), pooling_(pooling) {}

  // kInvalidArgument: a sampler setting is wrong; the slot is closed then.
  absl::Status Open(const wire::SequenceOpen& open);

  // Applies a KV edit to the slot's sequence: SAVE, SHIFT and REWIND keep it open, all others close
  // it.
  absl::Status Apply(const wire::KvEdit& edit);

  // A row of the batch feeds `token` at KV position `position`. Slots without an open
  // sequence are ignored.
  struct Row {
    int32_t slot = 0;
    int32_t position = 0;
    int32_t token = 0;
  };
  absl::Status Feed(Row row);
  // Whether the row feeds the token that was sampled last, and the sequence goes on behind it.
  bool Continues(Row row) const;

  // Chooses the token that follows `row`. kFailedPrecondition: the slot has no open sequence.
  absl::StatusOr<wire::SampledToken> Sample(Row row, absl::Span<const float> logits);

  // Whether the slot's open sequence is an embedding: TakeEmbedding() takes the place of Sample().
  bool Embeds(int32_t slot) const { return slots_[slot].pool.has_value(); }
  // Whether the row, which is sampled or not, is needed: its state where the slot Embeds(), else
  // its logits.
  bool Observes(Row row, bool is_sampled) const;
  // [n_embd_out] or [n_vocab]. REQUIRES: Observes(). Errors as of EmbeddingPool and PromptScores.
  absl::Status Observe(Row row, absl::Span<const float> output);
  // Of the slot's sequence, which is closed. REQUIRES: Embeds(row.slot).
  absl::StatusOr<wire::SampledToken> TakeEmbedding(Row row);

 private:
  struct Slot {
    std::unique_ptr<SequenceSampler> sampler;
    std::optional<EmbeddingPool> pool;  // in place of a sampler
    std::optional<PromptScores> scores;
    // Position in the sequence minus position in the KV cache: not 0 once the cache was shifted.
    int64_t offset = 0;
  };

  std::vector<Slot> slots_;
  const llama_vocab* const vocab_;
  const wire::Pooling pooling_;
};

}  // namespace strata
