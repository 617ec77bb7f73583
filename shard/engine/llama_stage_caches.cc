// Reads and writes the contents of a stage's slots, for transfer between stages.
#include <algorithm>
#include <new>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "shard/device/engine.h"
#include "shard/device/memory.h"
#include "shard/engine/llama_stage.h"

namespace strata {

Stage::Held LlamaStage::SlotStateOf(int32_t slot) const {
  return {.version = versions_[slot], .positions = static_cast<uint32_t>(next_[slot])};
}

bool LlamaStage::SplitsCaches() const {
  return llama_n_seq_max(context_.get()) > config_.facts.n_seq_max;
}

absl::StatusOr<Stage::CachePart> LlamaStage::ReadCache(int32_t slot, uint32_t begin,
                                                       uint32_t n_max) {
  UndoLookahead();
  if (absl::Status status = CheckSlot(slot); !status.ok()) return status;
  const auto length = static_cast<uint32_t>(next_[slot]);
  if (begin >= length || n_max == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("positions from ", begin, " of slot ", slot, ", which has ", length));
  }
  if (has_shifted_) return absl::UnavailableError("the slots' positions are being shifted");
  const bool splits = SplitsCaches();
  if (!splits && begin > 0) return absl::UnimplementedError("this cache cannot be read in parts");
  CachePart part = {.begin = begin,
                    .end = splits ? begin + std::min(n_max, length - begin) : length};
  const bool whole = part.begin == 0 && part.end == length;
  const llama_seq_id from = whole ? slot : spare();
  if (!whole) {
    llama_memory_seq_cp(memory(), slot, from, static_cast<llama_pos>(part.begin),
                        static_cast<llama_pos>(part.end));
  }
  const absl::Cleanup clear_spare = [&] {
    if (!whole) llama_memory_seq_rm(memory(), from, -1, -1);
  };
  LogCapture log;
  const size_t size = llama_state_seq_get_size(context_.get(), from);
  if (size > AvailableBytes()) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", size, " bytes of a cache"));
  }
  try {
    part.bytes.resize(size);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", size, " bytes of a cache"));
  }
  auto* const data = reinterpret_cast<uint8_t*>(part.bytes.data());
  if (size == 0 || llama_state_seq_get_data(context_.get(), data, size, from) != size) {
    return absl::InternalError(absl::StrCat("slot ", slot, " cannot be read: ", log.errors()));
  }
  return part;
}

absl::Status LlamaStage::WriteCache(int32_t slot, const CachePart& part) {
  UndoLookahead();
  if (absl::Status status = CheckSlot(slot); !status.ok()) return status;
  const auto length = static_cast<uint32_t>(next_[slot]);
  const bool follows = part.begin == 0 || (SplitsCaches() && part.begin == length);
  if (!follows || part.end <= part.begin || part.end > config_.facts.n_ctx) {
    return absl::InvalidArgumentError(absl::StrCat("positions [", part.begin, ", ", part.end,
                                                   ") for slot ", slot, ", which has ", length,
                                                   " of ", config_.facts.n_ctx));
  }
  if (part.begin == 0) Drop(slot);
  const llama_seq_id into = part.begin == 0 ? slot : spare();
  const auto* const data = reinterpret_cast<const uint8_t*>(part.bytes.data());
  LogCapture log;
  bool written = llama_state_seq_set_data(context_.get(), data, part.bytes.size(), into) ==
                     part.bytes.size() &&
                 llama_memory_seq_pos_max(memory(), into) + 1 == static_cast<llama_pos>(part.end);
  if (into != slot) {
    written =
        written && llama_memory_seq_pos_min(memory(), into) == static_cast<llama_pos>(part.begin);
    if (written) llama_memory_seq_cp(memory(), into, slot, -1, -1);
    llama_memory_seq_rm(memory(), into, -1, -1);
  }
  if (!written) {
    Drop(slot);
    return absl::DataLossError(absl::StrCat("another stage's cache for slot ", slot,
                                            " does not fit into this stage: ", log.errors()));
  }
  next_[slot] = static_cast<int32_t>(part.end);
  return absl::OkStatus();
}

}  // namespace strata
