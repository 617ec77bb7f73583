#include "shard/sampling/slot_samplers.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace strata {
namespace {

// Positions and offsets come from peers. Every position before the sequence's start becomes -1.
int32_t SequencePosition(int64_t position) {
  return static_cast<int32_t>(
      std::clamp<int64_t>(position, -1, std::numeric_limits<int32_t>::max()));
}

}  // namespace

absl::Status SlotSamplers::Open(const wire::SequenceOpen& open) {
  Slot& slot = slots_[open.slot()];
  slot = Slot();
  if (open.sampler().pooling() != wire::POOLING_OFF) {
    const wire::Pooling pooling = open.sampler().pooling();
    if (!wire::Pooling_IsValid(pooling)) {
      return absl::InvalidArgumentError(absl::StrCat("pooling is ", static_cast<int>(pooling)));
    }
    slot.pool.emplace(pooling == wire::POOLING_OF_MODEL ? pooling_ : pooling);
    return absl::OkStatus();
  }
  auto sampler = SequenceSampler::Open(open, vocab_);
  if (!sampler.ok()) return sampler.status();
  slot.sampler = *std::move(sampler);
  slot.offset = open.sequence_offset();
  if (!open.sampler().prompt_logprobs() || open.generated_size() > 0) return absl::OkStatus();
  slot.scores.emplace(open.prompt(), open.sampler().logprobs(), vocab_);
  return slot.scores->Check();
}

absl::Status SlotSamplers::Apply(const wire::KvEdit& edit) {
  Slot& slot = slots_[edit.slot()];
  switch (edit.kind()) {
    case wire::KvEdit::DROP:
    case wire::KvEdit::TRIM:
    case wire::KvEdit::COPY:
    case wire::KvEdit::RESTORE:
    case wire::KvEdit::LOAD:
      slot = Slot();
      return absl::OkStatus();
    case wire::KvEdit::SAVE:
    case wire::KvEdit::STORE:
    case wire::KvEdit::FORGET:
    case wire::KvEdit::REWIND:  // wrong drafts never became a part of the sequence
      return absl::OkStatus();
    case wire::KvEdit::SHIFT:
      if (edit.end() < 0) slot.offset -= edit.delta();
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(absl::StrCat("unknown KV edit ", edit.kind()));
  }
}

absl::Status SlotSamplers::Feed(Row row) {
  Slot& slot = slots_[row.slot];
  if (slot.sampler == nullptr) return absl::OkStatus();
  return slot.sampler->Feed(SequencePosition(row.position + slot.offset), row.token);
}

bool SlotSamplers::Continues(Row row) const {
  const Slot& slot = slots_[row.slot];
  return slot.sampler != nullptr &&
         slot.sampler->Continues(SequencePosition(row.position + slot.offset), row.token);
}

absl::StatusOr<wire::SampledToken> SlotSamplers::Sample(Row row, absl::Span<const float> logits) {
  Slot& slot = slots_[row.slot];
  if (slot.sampler == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("slot ", row.slot, " is sampled without an open sequence"));
  }
  auto token = slot.sampler->Sample(SequencePosition(row.position + 1 + slot.offset), logits);
  if (!token.ok()) return token.status();
  token->set_slot(row.slot);
  if (slot.scores) {
    if (absl::Status status = slot.scores->MoveTo(&*token); !status.ok()) return status;
    slot.scores.reset();
  }
  return token;
}

bool SlotSamplers::Observes(Row row, bool is_sampled) const {
  const Slot& slot = slots_[row.slot];
  return slot.pool ? slot.pool->Takes(row.position, is_sampled) : slot.scores && !is_sampled;
}

absl::Status SlotSamplers::Observe(Row row, absl::Span<const float> output) {
  Slot& slot = slots_[row.slot];
  return slot.pool ? slot.pool->Add(row.position, output) : slot.scores->Add(row.position, output);
}

absl::StatusOr<wire::SampledToken> SlotSamplers::TakeEmbedding(Row row) {
  const auto embedding = slots_[row.slot].pool->Embedding();
  slots_[row.slot] = Slot();
  if (!embedding.ok()) return embedding.status();
  wire::SampledToken token;
  token.set_slot(row.slot);
  token.set_position(SequencePosition(int64_t{row.position} + 1));
  token.set_end_of_generation(true);
  token.mutable_embedding()->Add(embedding->begin(), embedding->end());
  return token;
}

}  // namespace strata
