// The KV edits of a stage. Edits for which libllama would abort or lose a sequence are refused.
#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"
#include "shard/device/engine.h"
#include "shard/engine/llama_stage.h"

namespace strata {

bool LlamaStage::CanTrim(int32_t slot, int32_t begin) const {
  if (begin <= 0 || begin >= next_[slot]) return true;
  return config_.ability.trim && HasWindowBefore(slot, begin);
}

// A sliding window's cache has dropped all positions before the window of the last one.
bool LlamaStage::HasWindowBefore(int32_t slot, int32_t begin) const {
  const int32_t n_swa = llama_model_n_swa(model_.get());
  const int32_t oldest = llama_memory_seq_pos_min(memory(), Sequence(slot));
  return n_swa <= 0 || oldest <= std::max(0, begin - n_swa);
}

bool LlamaStage::TrimTo(int32_t slot, int32_t begin) {
  if (begin <= 0) {
    Drop(slot);
    return true;
  }
  return llama_memory_seq_rm(memory(), Sequence(slot), begin, -1);
}

void LlamaStage::Drop(int32_t slot) {
  llama_memory_seq_rm(memory(), Sequence(slot), -1, -1);  // of a whole sequence: never fails
  next_[slot] = 0;
  slot_blocks_[slot].clear();
  Changed(slot);
}

void LlamaStage::Clear() {
  UndoLookahead();
  llama_memory_clear(memory(), /*data=*/false);  // as a slot that is dropped
  std::fill(next_.begin(), next_.end(), 0);
  for (size_t slot = 0; slot < next_.size(); ++slot) Changed(static_cast<int32_t>(slot));
  pending_ = {};
  for (Checkpoint& checkpoint : checkpoints_) checkpoint = {};
}

void LlamaStage::Erase() {
  Clear();
  llama_memory_clear(memory(), /*data=*/true);
}

absl::Status LlamaStage::CheckSlot(int32_t slot) const {
  if (slot >= 0 && static_cast<uint32_t>(slot) < config_.facts.n_seq_max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("slot ", slot, " of ", config_.facts.n_seq_max));
}

absl::Status LlamaStage::Apply(const wire::KvEdit& edit) {
  UndoLookahead();
  if (absl::Status status = CheckSlot(edit.slot()); !status.ok()) return status;
  switch (edit.kind()) {
    case wire::KvEdit::DROP:
      Drop(edit.slot());
      return absl::OkStatus();
    case wire::KvEdit::TRIM:
    case wire::KvEdit::REWIND:
      return Trim(edit.slot(), edit.begin());
    case wire::KvEdit::COPY:
      if (absl::Status status = CheckSlot(edit.from_slot()); !status.ok()) return status;
      return Copy(edit.slot(), edit.from_slot());
    case wire::KvEdit::SHIFT:
      return Shift(edit);
    case wire::KvEdit::SAVE:
    case wire::KvEdit::RESTORE:
      if (edit.checkpoint() >= checkpoints_.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("checkpoint ", edit.checkpoint(), " of ", checkpoints_.size()));
      }
      if (edit.kind() == wire::KvEdit::RESTORE) return Restore(edit);
      Save(edit);
      return absl::OkStatus();
    case wire::KvEdit::STORE:
      StoreBlocks(edit);
      return absl::OkStatus();
    case wire::KvEdit::LOAD:
      return LoadBlocks(edit);
    case wire::KvEdit::FORGET:
      for (const KvName& name : SplitKvNames(edit.blocks())) {
        if (store_ != nullptr) store_->Forget(name);
      }
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(absl::StrCat("unknown KV edit ", edit.kind()));
  }
}

absl::Status LlamaStage::Trim(int32_t slot, int32_t begin) {
  if (begin < 0) return absl::InvalidArgumentError(absl::StrCat("trim from position ", begin));
  if (begin >= next_[slot]) return absl::OkStatus();
  if (!CanTrim(slot, begin) || !TrimTo(slot, begin)) {
    return absl::UnimplementedError(absl::StrCat("this model's cache cannot remove positions from ",
                                                 begin, " of slot ", slot, " on"));
  }
  next_[slot] = begin;
  Changed(slot);
  return absl::OkStatus();
}

absl::Status LlamaStage::Copy(int32_t slot, int32_t from) {
  if (slot == from) return absl::OkStatus();
  if (!config_.ability.copy) {
    return absl::UnimplementedError("this model's cache cannot copy a sequence");
  }
  Drop(slot);
  if (next_[from] > 0) {
    llama_memory_seq_cp(memory(), Sequence(from), Sequence(slot), -1, -1);
    pending_.copies = pending_.copies || config_.has_streams;
  }
  next_[slot] = next_[from];
  return absl::OkStatus();
}

// Removes [begin + delta, begin) and moves the positions after it down.
absl::Status LlamaStage::Shift(const wire::KvEdit& edit) {
  const int32_t slot = edit.slot();
  const bool reaches_end = edit.end() < 0 || edit.end() >= next_[slot];
  if (edit.delta() >= 0 || edit.begin() < 0 || !reaches_end ||
      edit.begin() + int64_t{edit.delta()} < 0 || edit.begin() > next_[slot]) {
    return absl::InvalidArgumentError(
        absl::StrCat("a shift by ", edit.delta(), " of positions [", edit.begin(), ", ", edit.end(),
                     ") of slot ", slot, ", which has ", next_[slot],
                     "; a shift goes down, reaches the end, and leaves no gap"));
  }
  if (!config_.ability.shift || !llama_memory_can_shift(memory())) {
    return absl::UnimplementedError("this model's cache cannot shift positions");
  }
  const int32_t to = edit.begin() + edit.delta();
  if (!llama_memory_seq_rm(memory(), Sequence(slot), to, edit.begin())) {
    return absl::UnimplementedError("this model's cache cannot remove a part of a sequence");
  }
  llama_memory_seq_add(memory(), Sequence(slot), edit.begin(), -1, edit.delta());
  next_[slot] += edit.delta();
  pending_.shifts = true;
  Changed(slot);
  return absl::OkStatus();
}

void LlamaStage::Save(const wire::KvEdit& edit) {
  Checkpoint& checkpoint = checkpoints_[edit.checkpoint()];
  checkpoint.length = 0;
  checkpoint.bytes.clear();
  // Not at its expected length: rows of a failed step may be missing.
  if (edit.begin() <= 0 || edit.begin() != next_[edit.slot()]) return;
  constexpr llama_state_seq_flags kFlags = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
  const size_t size = llama_state_seq_get_size_ext(context_.get(), Sequence(edit.slot()), kFlags);
  uint64_t kept = 0;
  for (const Checkpoint& each : checkpoints_) kept += each.bytes.capacity();
  const size_t grows = size - std::min(size, checkpoint.bytes.capacity());
  if (size == 0 || kept + grows > config_.facts.checkpoint_bytes) return;
  try {
    checkpoint.bytes.reserve(size);
    checkpoint.bytes.resize(size);
  } catch (const std::bad_alloc&) {
    checkpoint.bytes.clear();
    return;
  }
  LogCapture log;
  if (llama_state_seq_get_data_ext(context_.get(), checkpoint.bytes.data(), size,
                                   Sequence(edit.slot()), kFlags) == size) {
    checkpoint.length = edit.begin();
  }
}

absl::Status LlamaStage::Restore(const wire::KvEdit& edit) {
  const Checkpoint& checkpoint = checkpoints_[edit.checkpoint()];
  const int32_t slot = edit.slot();
  if (edit.begin() <= 0 || next_[slot] < edit.begin()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "slot ", slot, " has ", next_[slot], " positions; it cannot go back to ", edit.begin()));
  }
  if (checkpoint.length != edit.begin()) {
    return absl::NotFoundError(absl::StrCat("checkpoint ", edit.checkpoint(), " is of ",
                                            checkpoint.length, " positions, not of ",
                                            edit.begin()));
  }
  LogCapture log;
  const bool restored =
      llama_state_seq_set_data_ext(context_.get(), checkpoint.bytes.data(), checkpoint.bytes.size(),
                                   Sequence(slot),
                                   LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) == checkpoint.bytes.size() &&
      llama_memory_seq_rm(memory(), Sequence(slot), edit.begin(), -1) &&
      llama_memory_seq_pos_max(memory(), Sequence(slot)) == edit.begin() - 1;
  if (!restored) {
    Drop(slot);
    return absl::DataLossError(absl::StrCat("slot ", slot, " is lost: checkpoint ",
                                            edit.checkpoint(),
                                            " cannot be restored: ", log.errors()));
  }
  next_[slot] = edit.begin();
  Changed(slot);
  return absl::OkStatus();
}

}  // namespace strata
