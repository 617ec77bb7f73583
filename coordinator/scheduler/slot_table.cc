#include "coordinator/scheduler/slot_table.h"

#include <algorithm>

namespace strata {
namespace {

// A slot is copied again once it has grown by so many tokens, and by such a part of its length. A
// prompt fills it fast. What is generated is slow, and a lost node costs a thirty-second of it
// then; that takes the stages the time of 32 copies of each row.
constexpr uint32_t kPromptStoreTokensMin = 256, kPromptStorePart = 2;
constexpr uint32_t kStoreTokensMin = kKvBlockTokens, kStorePart = 32;

uint32_t CommonPrefix(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<uint32_t>(std::mismatch(a.begin(), a.begin() + n, b.begin()).first -
                               a.begin());
}

}  // namespace

bool ChangesSlot(const wire::KvEdit& edit) {
  return edit.kind() != wire::KvEdit::SAVE && edit.kind() != wire::KvEdit::STORE &&
         edit.kind() != wire::KvEdit::FORGET;
}

SlotTable::SlotTable(const PipelineFacts& facts, const SchedulerPolicy& policy)
    : facts_(facts),
      policy_(policy),
      cells_max_(CellsMaxOf(facts)),
      slots_(facts.n_slots),
      checkpoints_(facts.cache.checkpoint ? facts.n_checkpoints : 0),
      kv_(IndexOf(facts)) {}

KvIndex SlotTable::IndexOf(const PipelineFacts& facts) const {
  return policy_.keep_prefixes && !policy_.exact ? KvIndex(facts) : KvIndex();
}

wire::KvEdit* SlotTable::AddEdit(wire::KvEdit::Kind kind, int32_t slot) {
  wire::KvEdit& edit = edits_.emplace_back();
  edit.set_kind(kind);
  edit.set_slot(slot);
  if (ChangesSlot(edit)) ++slots_[slot].edits;
  return &edit;
}

bool SlotTable::HasEdit(wire::KvEdit::Kind kind) const {
  return std::ranges::any_of(edits_,
                             [kind](const wire::KvEdit& edit) { return edit.kind() == kind; });
}

// An owner is about to fill its slot again.
void SlotTable::ClaimWhatIsThere(Slot* s) {
  if (s->owner != 0) s->claim = std::max(s->claim, static_cast<uint32_t>(s->tokens.size()));
}

void SlotTable::Reset(int32_t slot) {
  Slot& s = slots_[slot];
  AddEdit(wire::KvEdit::DROP, slot);
  ClaimWhatIsThere(&s);
  s.tokens.clear();
  s.confirmed = 0;
  s.drafts.clear();
  s.chunked = s.stored = 0;
  s.to_store = false;
  s.shifted = false;
  s.shared = false;
  s.copied_from = {-1, 0};
  ++s.generation;
}

std::vector<uint64_t> SlotTable::ResetAfterFailure(int32_t slot, uint64_t generation, bool lost) {
  const std::pair<int32_t, uint64_t> failed = {slot, generation};
  std::vector<uint64_t> owners;
  if (slots_[slot].generation == generation) {
    Reset(slot);
    if (slots_[slot].owner != 0) owners.push_back(slots_[slot].owner);
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].copied_from != failed || (slots_[i].owner != 0 && !lost)) continue;
    const std::vector<uint64_t> more =
        ResetAfterFailure(static_cast<int32_t>(i), slots_[i].generation, lost);
    owners.insert(owners.end(), more.begin(), more.end());
  }
  return owners;
}

void SlotTable::CutToConfirmed(int32_t slot, wire::KvEdit::Kind kind) {
  Slot& s = slots_[slot];
  s.tokens.resize(s.confirmed);
  s.drafts.clear();
  s.chunked = std::min(s.chunked, s.confirmed);
  s.stored = std::min(s.stored, s.confirmed);
  AddEdit(kind, slot)->set_begin(static_cast<int32_t>(s.confirmed));
  ++s.generation;
}

void SlotTable::RollBack(int32_t slot) {
  ClaimWhatIsThere(&slots_[slot]);
  CutToConfirmed(slot, wire::KvEdit::TRIM);
}

void SlotTable::Rewind(int32_t slot) { CutToConfirmed(slot, wire::KvEdit::REWIND); }

SlotTable::DraftOrigin SlotTable::AcceptDraft(int32_t slot) {
  std::vector<DraftOrigin>& drafts = slots_[slot].drafts;
  const DraftOrigin origin = drafts.front();
  drafts.erase(drafts.begin());
  return origin;
}

bool SlotTable::HasRoomForDraft() const {
  const auto owners = static_cast<uint64_t>(
      std::ranges::count_if(slots_, [](const Slot& s) { return s.owner != 0; }));
  return cells_owned() + cells_kept() + owners * kCellsForOthers < cells_max_;
}

void SlotTable::Trim(int32_t slot, uint32_t length) {
  Slot& s = slots_[slot];
  if (length >= s.tokens.size()) return;
  AddEdit(wire::KvEdit::TRIM, slot)->set_begin(static_cast<int32_t>(length));
  s.tokens.resize(length);
  s.confirmed = std::min(s.confirmed, length);
  s.chunked = std::min(s.chunked, length);
  s.stored = std::min(s.stored, length);
}

void SlotTable::CopyInto(int32_t slot, int32_t from) {
  AddEdit(wire::KvEdit::COPY, slot)->set_from_slot(from);
  Slot& s = slots_[slot];
  s.tokens = slots_[from].tokens;
  s.confirmed = static_cast<uint32_t>(s.tokens.size());
  s.drafts.clear();  // those of `from` are behind what is taken of it
  s.chunked = slots_[from].chunked;
  s.stored = slots_[from].stored;
  s.shifted = slots_[from].shifted;
  s.shared = slots_[from].shared = true;
  s.copied_from = {from, slots_[from].generation};
  ++s.generation;
}

void SlotTable::Shift(int32_t slot, uint32_t keep, uint32_t discard) {
  wire::KvEdit* edit = AddEdit(wire::KvEdit::SHIFT, slot);
  edit->set_begin(static_cast<int32_t>(keep + discard));
  edit->set_end(-1);
  edit->set_delta(-static_cast<int32_t>(discard));
  Slot& s = slots_[slot];
  s.tokens.erase(s.tokens.begin() + keep, s.tokens.begin() + keep + discard);
  s.confirmed = static_cast<uint32_t>(s.tokens.size());
  s.shifted = true;
}

void SlotTable::Confirm(int32_t slot, uint64_t generation, uint32_t length) {
  Slot& s = slots_[slot];
  if (s.generation == generation && length <= s.tokens.size()) {
    s.confirmed = std::max(s.confirmed, length);
  }
}

void SlotTable::Release(int32_t slot, bool keep) {
  Slot& s = slots_[slot];
  if (!s.drafts.empty()) {
    // The rows before them may be in flight: the slot stays what it is for their results.
    s.tokens.resize(s.length());
    s.drafts.clear();
    AddEdit(wire::KvEdit::TRIM, slot)->set_begin(static_cast<int32_t>(s.tokens.size()));
  }
  s.owner = 0;
  s.claim = 0;
  s.may_shift = false;
  s.used = ++last_used_;
  // A slot without tokens may still be open on the last stage: Reset() closes it there.
  if (!keep || !policy_.keep_prefixes || s.shifted || s.tokens.empty()) Reset(slot);
}

bool SlotTable::Resume(const PipelineFacts& facts) {
  const bool alike = facts.n_slots == facts_.n_slots && facts.n_ctx == facts_.n_ctx &&
                     facts.kv_cells == facts_.kv_cells && facts.cache == facts_.cache &&
                     (!policy_.exact || ExactChunk(facts, policy_) == ExactChunk(facts_, policy_));
  if (!alike || HasEdit(wire::KvEdit::RESTORE) || HasEdit(wire::KvEdit::LOAD)) return false;
  std::erase_if(edits_, [](const wire::KvEdit& edit) { return !ChangesSlot(edit); });
  facts_ = facts;
  checkpoints_.assign(facts.cache.checkpoint ? facts.n_checkpoints : 0, {});
  kv_ = IndexOf(facts);
  for (Slot& s : slots_) s.stored = 0;
  return true;
}

void SlotTable::Empty() {
  for (size_t i = 0; i < slots_.size(); ++i) AddEdit(wire::KvEdit::DROP, static_cast<int32_t>(i));
}

void SlotTable::DropKept() {
  for (int32_t slot = OldestKept(-1); slot >= 0; slot = OldestKept(-1)) Reset(slot);
}

void SlotTable::ForgetKept() {
  DropKept();
  for (Checkpoint& checkpoint : checkpoints_) checkpoint = {};
  SendForget(kv_.ForgetAll());
}

bool SlotTable::has_kept() const { return n_kept() > 0; }

uint32_t SlotTable::n_kept() const {
  return static_cast<uint32_t>(std::count_if(slots_.begin(), slots_.end(), [](const Slot& s) {
    return s.owner == 0 && !s.tokens.empty();
  }));
}

uint64_t SlotTable::cells_owned() const {
  uint64_t cells = 0;
  for (const Slot& s : slots_) {
    if (s.owner != 0) cells += std::max<uint64_t>(s.claim, s.tokens.size());
  }
  return cells;
}

uint64_t SlotTable::cells_kept() const {
  uint64_t cells = 0;
  for (const Slot& s : slots_) {
    if (s.owner == 0) cells += s.tokens.size();
  }
  return cells;
}

int32_t SlotTable::EmptySlot() const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].owner == 0 && slots_[i].tokens.empty()) return static_cast<int32_t>(i);
  }
  return -1;
}

int32_t SlotTable::OldestKept(int32_t except) const {
  int32_t oldest = -1;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const auto slot = static_cast<int32_t>(i);
    if (slots_[i].owner != 0 || slots_[i].tokens.empty() || slot == except) continue;
    if (oldest < 0 || slots_[i].used < slots_[oldest].used) oldest = slot;
  }
  return oldest;
}

bool SlotTable::MakeRoom(uint64_t cells, int32_t except) {
  while (cells_owned() + cells_kept() + cells > cells_max_) {
    const int32_t oldest = OldestKept(except);
    if (oldest < 0) return false;
    Reset(oldest);
  }
  return true;
}

SlotTable::PrefixSource SlotTable::Usable(int32_t slot, uint32_t common,
                                          const Sequence& wanted) const {
  const Slot& s = slots_[slot];
  const absl::Span<const int32_t> sequence = wanted.tokens;
  const bool may_shift = wanted.may_shift;
  const auto sequence_length = static_cast<uint32_t>(sequence.size());
  const auto length = static_cast<uint32_t>(s.tokens.size());
  if (policy_.exact) {
    common = std::min({common, s.chunked, sequence_length - 1});
    common -= common % ExactChunk(facts_, policy_);
  }
  if (s.shifted || common == 0 || s.scope != wanted.scope) return {};
  const bool whole = common == length;
  if (s.owner != 0) {
    // The owner appends to it: only confirmed positions are certain, and only a copy can be taken.
    if (!facts_.cache.copy || may_shift || s.may_shift) return {};
    const uint32_t usable = std::min({common, s.confirmed, sequence_length - 1});
    if (facts_.cache.trim) return {.slot = slot, .length = usable, .must_copy = true};
    return FromCheckpoint(slot, sequence, usable, /*must_copy=*/true);
  }
  if (s.confirmed < length) return {};  // the last rows are still in flight
  if (may_shift && s.shared) return {};
  if (whole && common < sequence_length) return {.slot = slot, .length = common};
  // A window forgets what lies behind it; before it is full, everything is there.
  const bool can_trim =
      facts_.cache.trim && (facts_.cache.window_tokens == 0 || length < facts_.cache.window_tokens);
  const uint32_t usable = std::min(common, sequence_length - 1);
  if (can_trim) return {.slot = slot, .length = usable};
  return FromCheckpoint(slot, sequence, usable, /*must_copy=*/false);
}

SlotTable::PrefixSource SlotTable::FromCheckpoint(int32_t slot, absl::Span<const int32_t> sequence,
                                                  uint32_t length, bool must_copy) const {
  const int32_t checkpoint = CheckpointOf(sequence, length);
  if (checkpoint < 0) return {};
  return {.slot = slot,
          .length = static_cast<uint32_t>(checkpoints_[checkpoint].tokens.size()),
          .must_copy = must_copy,
          .checkpoint = checkpoint};
}

SlotTable::PrefixSource SlotTable::BestSource(const Sequence& sequence) const {
  PrefixSource best;
  if (!policy_.keep_prefixes) return best;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const PrefixSource source =
        Usable(static_cast<int32_t>(i), CommonPrefix(slots_[i].tokens, sequence.tokens), sequence);
    const bool better = source.length > best.length ||
                        (source.length == best.length && best.must_copy && !source.must_copy);
    if (source.length >= std::max(policy_.prefix_tokens_min, 1u) && better) best = source;
  }
  return best;
}

uint32_t SlotTable::KnownPrefix(const Sequence& sequence) const {
  uint32_t known = 0;
  for (const Slot& s : slots_) {
    if (s.shifted || s.scope != sequence.scope) continue;
    known = std::max(known, CommonPrefix(s.tokens, sequence.tokens));
  }
  return known;
}

SlotTable::StoredPrefix SlotTable::FindStored(const Sequence& sequence) const {
  if (!kv_.keeps_any() || !sequence.may_load) return {};
  const absl::Span<const int32_t> before_last = sequence.tokens.first(sequence.tokens.size() - 1);
  if (stores_states()) {
    const std::optional<KvName> state = kv_.FindState(sequence.scope, before_last);
    if (!state) return {};
    return {.blocks = {*state}, .length = KvStateLength(*state)};
  }
  const absl::Span<const KvName> blocks = sequence.blocks.subspan(
      0, std::min(sequence.blocks.size(), before_last.size() / kKvBlockTokens));
  const size_t n = kv_.Find(blocks);
  return {.blocks = {blocks.begin(), blocks.begin() + n},
          .length = static_cast<uint32_t>(n * kKvBlockTokens)};
}

void SlotTable::Load(int32_t slot, const Sequence& sequence, const StoredPrefix& stored) {
  kv_.Use(stored.blocks);
  wire::KvEdit* const edit = AddEdit(wire::KvEdit::LOAD, slot);
  edit->set_blocks(JoinKvNames(stored.blocks));
  edit->set_scope(std::string(sequence.scope));
  const absl::Span<const int32_t> tokens = sequence.tokens.first(stored.length);
  Slot& s = slots_[slot];
  s.tokens.assign(tokens.begin(), tokens.end());
  s.confirmed = s.stored = static_cast<uint32_t>(s.tokens.size());
  ++s.generation;
}

void SlotTable::StoreGrown(int32_t slot, uint32_t prompt_tokens) {
  const Slot& s = slots_[slot];
  const uint32_t length = s.length();
  const bool in_prompt = length < prompt_tokens;
  const uint32_t grown = in_prompt ? std::max(kPromptStoreTokensMin, s.stored / kPromptStorePart)
                                   : std::max(kStoreTokensMin, s.stored / kStorePart);
  const bool has_grown = length >= s.stored + grown;
  const bool has_prompt = length >= prompt_tokens && s.stored + kKvBlockTokens <= prompt_tokens;
  if (keeps_blocks() && (has_grown || has_prompt)) StoreNow(slot);
}

void SlotTable::Store(int32_t slot) {
  slots_[slot].to_store = true;
  StoreNow(slot);
}

void SlotTable::StoreWaiting() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].to_store) StoreNow(static_cast<int32_t>(i));
  }
}

void SlotTable::EndEdits(absl::Span<const std::pair<int32_t, uint64_t>> edits) {
  for (const auto& [slot, generation] : edits) --slots_[slot].edits;
}

void SlotTable::ForgetUnconfirmedBlocks() {
  SendForget(kv_.ForgetUnconfirmed());
  for (Slot& s : slots_) s.stored = 0;
}

void SlotTable::StoreNow(int32_t slot) {
  Slot& s = slots_[slot];
  if (!kv_.keeps_any() || s.shifted || s.edits > 0) return;
  // Stages cannot read a slot behind these before the step's rows.
  if (HasEdit(wire::KvEdit::COPY) || HasEdit(wire::KvEdit::SHIFT)) return;
  s.to_store = false;
  const uint32_t length = s.length();
  s.stored = length;
  if (length < kKvBlockTokens) return;
  const absl::Span<const int32_t> tokens = absl::MakeConstSpan(s.tokens).first(length);
  const std::vector<KvName> names =
      stores_states() ? KvStateNamesOf(s.scope, tokens, {length}) : KvNamesOf(s.scope, tokens);
  const KvIndex::Added added = kv_.Add(names);
  SendForget(added.dropped);
  if (added.first == added.end) return;
  wire::KvEdit* edit = AddEdit(wire::KvEdit::STORE, slot);
  edit->set_scope(s.scope);
  edit->set_begin(static_cast<int32_t>(added.first * kKvBlockTokens));
  edit->set_blocks(
      JoinKvNames(absl::MakeConstSpan(names).subspan(added.first, added.end - added.first)));
}

void SlotTable::SendForget(absl::Span<const KvName> blocks) {
  if (blocks.empty()) return;
  AddEdit(wire::KvEdit::FORGET, /*slot=*/0)->set_blocks(JoinKvNames(blocks));
}

std::optional<SlotTable::Placement> SlotTable::Acquire(uint64_t owner, const Sequence& sequence,
                                                       bool from_first) {
  const uint64_t need = sequence.tokens.size();
  if (cells_owned() + need > cells_max_) return std::nullopt;
  PrefixSource source = from_first ? PrefixSource() : BestSource(sequence);
  // A load reads the disk of every stage: it is worth that for a block or more.
  const StoredPrefix stored = from_first ? StoredPrefix() : FindStored(sequence);
  const bool loads = stored.length >= source.length + kKvBlockTokens;
  if (loads) source = {};
  // Stages may carry out a copy later than what comes with it: the load waits for the next step.
  if (loads && HasEdit(wire::KvEdit::COPY)) return std::nullopt;
  const bool is_kept = source.slot >= 0 && !source.must_copy;
  const auto rest = [&] { return slots_[source.slot].tokens.size() - source.length; };

  int32_t target = -1;
  if (is_kept) {
    // The rest of the kept sequence is worth a copy only where nothing has to be dropped for it.
    const bool spare = !sequence.may_shift && EmptySlot() >= 0 && facts_.cache.copy &&
                       cells_owned() + cells_kept() + need <= cells_max_;
    target = spare && rest() > source.length / 4 ? EmptySlot() : source.slot;
  } else {
    target = EmptySlot();
    if (target < 0) target = OldestKept(-1);
    if (target < 0) return std::nullopt;
  }

  if (target != source.slot && !slots_[target].tokens.empty()) Reset(target);
  if (loads) {
    MakeRoom(need, -1);  // before the stages fill cells; succeeds, as below
    Load(target, sequence, stored);
  } else if (target == source.slot) {
    GoBack(target, source);
  } else if (source.slot >= 0) {
    CopyInto(target, source.slot);
    GoBack(target, source);
    slots_[source.slot].used = ++last_used_;
  }
  Slot& s = slots_[target];
  s.to_store = false;
  s.owner = s.last_owner = owner;
  s.claim = static_cast<uint32_t>(need);
  s.may_shift = sequence.may_shift;
  s.scope = sequence.scope;
  s.used = ++last_used_;
  MakeRoom(0, -1);  // succeeds: the owners have room
  return Placement{.slot = target,
                   .cached = loads ? static_cast<uint32_t>(s.tokens.size()) : source.length,
                   .loads = loads};
}

void SlotTable::Save(int32_t slot) {
  const std::vector<int32_t>& tokens = slots_[slot].tokens;
  if (!wants_checkpoints() || tokens.empty() || slots_[slot].shifted) return;
  size_t target = 0;
  for (size_t i = 0; i < checkpoints_.size(); ++i) {
    if (checkpoints_[i].tokens == tokens) {
      checkpoints_[i].used = ++last_used_;
      return;
    }
    // Free checkpoints were never used.
    if (checkpoints_[i].used < checkpoints_[target].used) target = i;
  }
  checkpoints_[target] = {
      .tokens = tokens, .save = ++last_save_, .used = ++last_used_, .slot = slot};
  wire::KvEdit* edit = AddEdit(wire::KvEdit::SAVE, slot);
  edit->set_checkpoint(static_cast<uint32_t>(target));
  edit->set_begin(static_cast<int32_t>(tokens.size()));
}

void SlotTable::ConfirmSave(uint32_t checkpoint, uint64_t save) {
  if (save != 0 && checkpoints_[checkpoint].save == save) checkpoints_[checkpoint].confirmed = true;
}

void SlotTable::ForgetSave(uint32_t checkpoint, uint64_t save) {
  if (checkpoints_[checkpoint].save == save) checkpoints_[checkpoint] = {};
}

void SlotTable::ForgetSavesOf(int32_t slot) {
  for (Checkpoint& c : checkpoints_) {
    if (c.slot == slot && !c.confirmed) c = {};
  }
}

uint64_t SlotTable::SaveOf(uint32_t checkpoint) const { return checkpoints_[checkpoint].save; }

uint32_t SlotTable::n_checkpoints() const {
  return static_cast<uint32_t>(
      std::count_if(checkpoints_.begin(), checkpoints_.end(),
                    [](const Checkpoint& c) { return !c.tokens.empty(); }));
}

int32_t SlotTable::CheckpointOf(absl::Span<const int32_t> sequence, uint32_t length) const {
  int32_t best = -1;
  size_t best_length = 0;
  for (size_t i = 0; i < checkpoints_.size(); ++i) {
    const Checkpoint& c = checkpoints_[i];
    if (!c.confirmed || c.tokens.size() > length || c.tokens.size() <= best_length) continue;
    if (CommonPrefix(c.tokens, sequence) < c.tokens.size()) continue;
    best = static_cast<int32_t>(i);
    best_length = c.tokens.size();
  }
  return best;
}

void SlotTable::Restore(int32_t slot, int32_t checkpoint) {
  Checkpoint& c = checkpoints_[checkpoint];
  const auto length = static_cast<uint32_t>(c.tokens.size());
  wire::KvEdit* edit = AddEdit(wire::KvEdit::RESTORE, slot);
  edit->set_checkpoint(static_cast<uint32_t>(checkpoint));
  edit->set_begin(static_cast<int32_t>(length));
  Slot& s = slots_[slot];
  s.tokens.resize(length);
  s.confirmed = std::min(s.confirmed, length);
  s.chunked = std::min(s.chunked, length);
  s.stored = std::min(s.stored, length);
  c.used = ++last_used_;
}

void SlotTable::GoBack(int32_t slot, const PrefixSource& to) {
  if (to.checkpoint >= 0) {
    Restore(slot, to.checkpoint);
  } else {
    Trim(slot, to.length);
  }
}

}  // namespace strata
