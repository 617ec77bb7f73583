// Reads and writes the contents of a stage's slots: for transfer between stages, for the store of
// KV blocks, and to exchange the streams of slots.
#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shard/device/engine.h"
#include "shard/device/memory.h"
#include "shard/engine/llama_stage.h"
#include "shard/engine/sequence_state.h"
#include "shard/kv_store/kv_cuts.h"
#include "shard/kv_store/kv_store.h"

namespace strata {
namespace {

// Of the memory that is free, the part that a copy of a slot for the disk may take: it is a
// comfort, and not worth that the system kills a stage.
constexpr uint64_t kStoreMemoryPart = 4;

absl::StatusOr<std::string> JoinCuts(absl::Span<const KvCuts::Part> parts) {
  std::vector<std::string> states;
  for (const KvCuts::Part& part : parts) {
    auto layers = LayersOf(part.bytes, part.n_layers, {part.layers.begin(), part.layers.end()});
    if (!layers.ok()) return layers.status();
    states.push_back(*std::move(layers));
  }
  return JoinLayers(std::vector<absl::string_view>(states.begin(), states.end()));
}

}  // namespace

Stage::Held LlamaStage::SlotStateOf(int32_t slot) const {
  return {.version = versions_[slot], .positions = static_cast<uint32_t>(next_[slot])};
}

absl::StatusOr<std::string> LlamaStage::ReadState(int32_t slot, uint64_t bytes_max) {
  LogCapture log;
  const size_t size = llama_state_seq_get_size(context_.get(), Sequence(slot));
  const auto no_memory = [size] {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", size, " bytes of a cache"));
  };
  if (size > std::min(bytes_max, AvailableBytes())) return no_memory();
  std::string state;
  try {
    state.resize(size);
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
  auto* const data = reinterpret_cast<uint8_t*>(state.data());
  if (size == 0 || llama_state_seq_get_data(context_.get(), data, size, Sequence(slot)) != size) {
    return absl::InternalError(absl::StrCat("slot ", slot, " cannot be read: ", log.errors()));
  }
  return state;
}

absl::Status LlamaStage::WriteState(int32_t slot, absl::string_view state, uint32_t n_positions) {
  LogCapture log;
  llama_memory_seq_rm(memory(), Sequence(slot), -1, -1);
  const auto* const data = reinterpret_cast<const uint8_t*>(state.data());
  if (llama_state_seq_set_data(context_.get(), data, state.size(), Sequence(slot)) ==
          state.size() &&
      llama_memory_seq_pos_max(memory(), Sequence(slot)) + 1 ==
          static_cast<llama_pos>(n_positions)) {
    next_[slot] = static_cast<int32_t>(n_positions);
    return absl::OkStatus();
  }
  Drop(slot);
  return absl::DataLossError(
      absl::StrCat("a cache for slot ", slot, " does not fit into this stage: ", log.errors()));
}

absl::StatusOr<Stage::CachePart> LlamaStage::ReadCache(int32_t slot, uint32_t begin,
                                                       uint32_t n_max) {
  UndoLookahead();
  if (absl::Status status = CheckSlot(slot); !status.ok()) return status;
  const Held held = SlotStateOf(slot);
  if (begin >= held.positions || n_max == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("positions from ", begin, " of slot ", slot, ", which has ", held.positions));
  }
  if (pending_.any()) {
    return absl::UnavailableError("slots are being shifted or copied until the next step");
  }
  if (!SplitsCaches() && begin > 0) {
    return absl::UnimplementedError("this cache cannot be read in parts");
  }
  const bool is_read = !read_.bytes.empty() && read_.slot == slot &&
                       read_.held.version == held.version && read_.held.positions > begin;
  if (!is_read) {
    read_ = {};
    auto state = ReadState(slot);
    if (!state.ok()) return state.status();
    read_ = {.slot = slot, .held = held, .bytes = *std::move(state)};
  }
  const uint32_t length = read_.held.positions;
  CachePart part = {.begin = begin,
                    .end = SplitsCaches() ? begin + std::min(n_max, length - begin) : length};
  const bool is_last = part.end == length;
  if (is_last && begin == 0) {
    part.bytes = std::exchange(read_, {}).bytes;
    return part;
  }
  auto bytes = PositionsOf(read_.bytes, part.begin, part.end);
  if (is_last || !bytes.ok()) read_ = {};
  if (!bytes.ok()) return bytes.status();
  part.bytes = *std::move(bytes);
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
  if (part.begin == 0) {
    Drop(slot);
    return WriteState(slot, part.bytes, part.end);
  }
  auto state = ReadState(slot);
  if (!state.ok()) return state.status();
  auto joined = JoinPositions({*state, part.bytes});
  if (!joined.ok()) {
    Drop(slot);
    return absl::DataLossError(absl::StrCat(
        "a cache for slot ", slot, " does not fit into this stage: ", joined.status().message()));
  }
  return WriteState(slot, *joined, part.end);
}

void LlamaStage::SetKvStore(std::unique_ptr<KvStore> store) {
  store_ = std::move(store);
  if (SplitsCaches()) store_->UseCuts(JoinCuts);
  // A little more than libllama writes of each position; of states, what slots that are full to a
  // quarter have.
  const Facts& facts = config_.facts;
  const uint64_t position_bytes = facts.kv_bytes / std::max<uint64_t>(facts.kv_cells, 1) + 1;
  const uint64_t block_bytes =
      SplitsCaches() ? position_bytes * kKvBlockTokens : facts.kv_bytes / facts.n_seq_max / 4 + 1;
  config_.facts.kv_blocks_max =
      static_cast<uint32_t>(std::min<uint64_t>(store_->bytes_max() / block_bytes, kKvBlocksMax));
}

std::vector<KvName> LlamaStage::StoredBlocks() const {
  return store_ == nullptr ? std::vector<KvName>() : store_->Names();
}

std::vector<KvName> LlamaStage::TakeLostBlocks() {
  std::vector<KvName> lost = std::exchange(lost_blocks_, {});
  if (store_ == nullptr) return lost;
  const std::vector<KvName> more = store_->TakeLost();
  lost.insert(lost.end(), more.begin(), more.end());
  return lost;
}

absl::StatusOr<std::vector<std::string>> LlamaStage::ReadBlocks(const wire::KvEdit& edit,
                                                                absl::Span<const KvName> names) {
  const auto length = static_cast<size_t>(next_[edit.slot()]);
  const bool has_all =
      SplitsCaches() ? edit.begin() >= 0 && edit.begin() + names.size() * kKvBlockTokens <= length
                     : names.size() == 1 && length > 0 && KvStateLength(names.front()) == length;
  // Rows of a failed step may be missing.
  if (!has_all || pending_.any()) return absl::UnavailableError("the slot has other positions now");
  auto state = ReadState(edit.slot(), AvailableBytes() / kStoreMemoryPart);
  if (!state.ok()) return state.status();
  if (SplitsCaches()) {
    return BlocksOf(*state, static_cast<uint32_t>(edit.begin()), kKvBlockTokens, names.size());
  }
  std::vector<std::string> whole;
  whole.push_back(*std::move(state));
  return whole;
}

void LlamaStage::StoreBlocks(const wire::KvEdit& edit) {
  const std::vector<KvName> names = SplitKvNames(edit.blocks());
  absl::StatusOr<std::vector<std::string>> blocks = absl::NotFoundError("there is no store");
  if (store_ != nullptr) blocks = ReadBlocks(edit, names);
  if (!blocks.ok()) {
    lost_blocks_.insert(lost_blocks_.end(), names.begin(), names.end());
    return;
  }
  for (size_t i = names.size(); i > 0; --i) {
    store_->Put({names[i - 1], edit.scope()}, std::move((*blocks)[i - 1]));
  }
  if (SplitsCaches()) UseBlocksBefore(edit, names);
}

// `names` have just been stored: those that the sequence begins with are worth no less.
void LlamaStage::UseBlocksBefore(const wire::KvEdit& store, absl::Span<const KvName> names) {
  std::vector<KvName>& blocks = slot_blocks_[store.slot()];
  const size_t n_before = static_cast<size_t>(store.begin()) / kKvBlockTokens;
  if (blocks.size() < n_before) return;  // not all are known
  blocks.resize(n_before);
  store_->Use(blocks);
  blocks.insert(blocks.end(), names.begin(), names.end());
}

absl::Status LlamaStage::LoadBlocks(const wire::KvEdit& edit) {
  const int32_t slot = edit.slot();
  const std::vector<KvName> names = SplitKvNames(edit.blocks());
  size_t n_positions = 0;
  if (SplitsCaches()) {
    n_positions = names.size() * kKvBlockTokens;
  } else if (names.size() == 1) {
    n_positions = KvStateLength(names.front());
  }
  if (n_positions == 0 || n_positions > config_.facts.n_ctx) {
    return absl::InvalidArgumentError(
        absl::StrCat(names.size(), " KV blocks for a slot of ", config_.facts.n_ctx, " positions"));
  }
  if (store_ == nullptr) return absl::NotFoundError("this stage keeps no KV blocks");
  if (pending_.copies) return absl::UnavailableError("slots are being copied until the next step");
  std::vector<std::string> blocks(names.size());
  try {
    // The last first: the beginning counts as used last.
    for (size_t i = names.size(); i > 0; --i) {
      auto block = store_->Get({names[i - 1], edit.scope()});
      if (!block.ok()) return absl::NotFoundError(block.status().message());
      blocks[i - 1] = *std::move(block);
    }
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory for the KV blocks of a sequence");
  }
  absl::StatusOr<std::string> state =
      SplitsCaches() ? JoinPositions(std::vector<absl::string_view>(blocks.begin(), blocks.end()))
                     : std::move(blocks.front());
  if (absl::IsResourceExhausted(state.status())) return state.status();
  absl::Status written = state.status();
  if (written.ok()) {
    Drop(slot);
    written = WriteState(slot, *state, static_cast<uint32_t>(n_positions));
  }
  if (!written.ok()) {  // they are of no use here
    for (const KvName& name : names) store_->Forget(name);
    return written;
  }
  if (SplitsCaches()) slot_blocks_[slot] = names;
  return absl::OkStatus();
}

absl::Status LlamaStage::ExchangeStreams(SlotStreams::Exchange exchange) {
  struct Content {
    int32_t slot;
    uint32_t n_positions;
    std::string state;
  };
  std::vector<Content> contents;
  for (const int32_t slot : {exchange.slot, exchange.other}) {
    if (next_[slot] == 0) continue;
    auto state = ReadState(slot);
    // They stay where they are, which is only slower.
    if (!state.ok()) return absl::OkStatus();
    contents.push_back({slot, static_cast<uint32_t>(next_[slot]), *std::move(state)});
  }
  for (const Content& content : contents) {
    llama_memory_seq_rm(memory(), Sequence(content.slot), -1, -1);
  }
  streams_.Apply(exchange);
  absl::Status status;
  for (const Content& content : contents) {
    status.Update(WriteState(content.slot, content.state, content.n_positions));
  }
  return status;
}

}  // namespace strata
