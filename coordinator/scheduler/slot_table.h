// The contents of each slot of the KV caches, for the scheduler: its owner, how much of it every
// stage has confirmed, the edits to send with the next step, and which kept sequence a new one may
// go on from. No I/O, one thread.
//
// Edits and rows travel in one order through all stages, so that the table holds for every step
// that is formed later. Only a step that fails makes a slot differ from the table:
// ResetAfterFailure() or RollBack() repairs that.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/scheduler/kv_index.h"
#include "coordinator/scheduler/scheduler_types.h"
#include "proto/frame.pb.h"
#include "shard/kv_store/kv_block.h"

namespace strata {

// Whether the edit changes what its slot holds.
bool ChangesSlot(const wire::KvEdit& edit);

class SlotTable {
 public:
  // Free for the tokens of each sequence while a draft stands in the caches.
  static constexpr uint32_t kCellsForOthers = 16;

  // Indexes of DraftsByDrafter and DraftsByDepth.
  struct DraftOrigin {
    size_t drafter = 0;
    size_t depth = 0;
  };
  struct Slot {
    std::vector<int32_t> tokens;  // the contents once every step formed so far is done
    uint32_t confirmed = 0;       // so many of `tokens` are in all stages
    uint32_t chunked = 0;         // so many of `tokens` were fed in chunks of ExactChunk()
    uint32_t stored = 0;          // so many of `tokens` the stages were to keep on their disks
    bool to_store = false;        // they are to keep all of it, once no edit of it is in doubt
    uint32_t edits = 0;           // that change it, whose steps have no outcome yet
    uint32_t claim = 0;           // cells that its owner is about to fill, `tokens` included
    uint64_t owner = 0;           // a request; 0: none, and `tokens` are kept
    uint64_t last_owner = 0;      // `owner`, or the one that left `tokens`
    // Rises when the slot starts anew. Results of steps under an older number no longer apply to
    // the slot.
    uint64_t generation = 0;
    bool shifted = false;  // the KV is not what feeding `tokens` gives: usable as no prefix
    // Copied from or to since the slot was empty. Such a slot is not shifted: a cache may hold a
    // copy in the same cells, which have one position for all slots that use them.
    bool shared = false;
    bool may_shift = false;  // its owner's context may: the slot is not copied from or to
    uint64_t used = 0;       // rises; the slot with the least is the least recently used
    std::pair<int32_t, uint64_t> copied_from = {-1, 0};  // slot, its generation
    std::vector<DraftOrigin> drafts;  // of as many at the end of `tokens`, none confirmed
    std::string scope;                // of the owner, or of the one that left `tokens`
    uint32_t length() const { return static_cast<uint32_t>(tokens.size() - drafts.size()); }
  };

  SlotTable(const PipelineFacts& facts, const SchedulerPolicy& policy);

  // A slot is to hold it. `scope`: only kept sequences of the same are of use.
  struct Sequence {
    absl::Span<const int32_t> tokens;
    absl::string_view scope;
    absl::Span<const KvName> blocks;  // of `tokens`, or of more that begin alike
    bool may_load = true;
    bool may_shift = false;  // Shift() may follow
  };
  // Gives `owner` a slot whose KV is to be `sequence`, with the longest prefix that the caches can
  // restore or the stages load; at least the last token is left to feed. Kept sequences are dropped
  // as needed, the least recently used first. nullopt: no slot, no room beside the owners of slots,
  // or not before the next step. `from_first`: all of the sequence is to be fed.
  struct Placement {
    int32_t slot = 0;
    uint32_t cached = 0;  // tokens of the sequence that it has already
    bool loads = false;   // they come from the stages' disks
  };
  std::optional<Placement> Acquire(uint64_t owner, const Sequence& sequence, bool from_first);

  // Makes room for so many cells beyond all claims, if need be by dropping kept sequences. False:
  // the owners fill the caches.
  bool MakeRoom(uint64_t cells) { return MakeRoom(cells, -1); }

  // Rows that the step being formed feeds. REQUIRES: no draft stands before them.
  void Append(int32_t slot, int32_t token) { slots_[slot].tokens.push_back(token); }
  // The same of a draft of what follows. REQUIRES: the cache can rewind, HasRoomForDraft().
  void AppendDraft(int32_t slot, int32_t token, DraftOrigin origin) {
    Append(slot, token);
    slots_[slot].drafts.push_back(origin);
  }
  // Whether there is a cell for one more position, and each owner keeps kCellsForOthers besides.
  bool HasRoomForDraft() const;
  // The first draft of the slot is right. Returns its origin.
  DraftOrigin AcceptDraft(int32_t slot);
  // Forgets all drafts, the first of which is wrong; the sequence stays open. REQUIRES: all before
  // them is confirmed.
  void Rewind(int32_t slot);
  // The rows appended last were a whole chunk of a prompt.
  void EndChunk(int32_t slot) {
    slots_[slot].chunked = static_cast<uint32_t>(slots_[slot].tokens.size());
  }
  // A step of generation `generation` is done in all stages: the slot has `length` positions, of
  // which drafts that were taken back do not count.
  void Confirm(int32_t slot, uint64_t generation, uint32_t length);

  // Whether the stages keep KV blocks of 64 positions.
  bool keeps_blocks() const { return kv_.keeps_any() && !stores_states(); }
  // Whether they store all of a sequence as one block, a state.
  bool stores_states() const { return !facts_.cache.trim || facts_.cache.window_tokens != 0; }
  // Has the stages keep the slot's blocks as they are now, those of them that they have not yet;
  // where an edit of the slot has no outcome yet, once it has one, if the slot is the same then.
  void Store(int32_t slot);
  void StoreWaiting();
  // The same now or never. An edit that failed in a stage leaves other contents in those behind it.
  void StoreNow(int32_t slot);
  // Edits of a step, as slots with their generations: it has an outcome.
  void EndEdits(absl::Span<const std::pair<int32_t, uint64_t>> edits);
  // The same while its owner fills it, so that a stage that is lost costs the rows since: at the
  // end of a prompt of so many tokens, each time that it has grown by half before, and by a
  // thirty-second afterwards.
  void StoreGrown(int32_t slot, uint32_t prompt_tokens);
  // The outcome of a step that stores blocks.
  void ConfirmStore(absl::Span<const KvName> blocks) { kv_.Confirm(blocks); }
  // Blocks that a stage has lost, or may have.
  void ForgetBlocks(absl::Span<const KvName> blocks) { SendForget(kv_.Forget(blocks)); }
  // Those of steps that have no outcome yet: stages may have stored different states.
  void ForgetUnconfirmedBlocks();
  // Some stages may not have forgotten them.
  void ForgetAgain(absl::Span<const KvName> blocks) {
    kv_.Forget(blocks);
    SendForget(blocks);
  }
  uint32_t n_blocks() const { return kv_.n_kept(); }

  // The owner leaves. `keep`: its tokens stay for others.
  void Release(int32_t slot, bool keep);
  // Clears the slot in every stage, whatever happened to it; the owner stays.
  void Reset(int32_t slot);
  // Clears a slot that a failed step had touched, and the kept copies of it: they may have missed
  // the same rows. `lost`: a stage may have lost confirmed positions, too; then copies with an
  // owner are cleared as well. Concerns the slot's generation `generation`; where the slot has
  // started anew since, only the copies. Returns the owners of the cleared slots.
  std::vector<uint64_t> ResetAfterFailure(int32_t slot, uint64_t generation, bool lost);
  // Trims the slot to what is confirmed, in every stage. REQUIRES: CanRollBack().
  void RollBack(int32_t slot);
  bool CanRollBack() const { return facts_.cache.trim && facts_.cache.window_tokens == 0; }
  // Drops [keep, keep + discard) and moves what follows down into its place. REQUIRES: all
  // positions of the slot are confirmed.
  void Shift(int32_t slot, uint32_t keep, uint32_t discard);
  // The owner is about to fill the slot up to `length`. REQUIRES: there is room.
  void Claim(int32_t slot, uint32_t length) { slots_[slot].claim = length; }
  // Saves the slot as it is now in every stage, for sequences with the same beginning; replaces the
  // least recently used checkpoint.
  void Save(int32_t slot);
  // Whether a cache that cannot trim can go back to a checkpoint. Not exact to the last bit: a
  // window may lie in other cells afterwards.
  bool wants_checkpoints() const {
    return policy_.keep_prefixes && !policy_.exact && facts_.cache.checkpoint &&
           !checkpoints_.empty();
  }
  // The outcome of the step that saved `checkpoint` for the `save`th time. An unconfirmed
  // checkpoint is not used.
  void ConfirmSave(uint32_t checkpoint, uint64_t save);
  void ForgetSave(uint32_t checkpoint, uint64_t save);
  // Forgets the saves of a slot that a failed step had touched: stages may have saved different
  // states.
  void ForgetSavesOf(int32_t slot);
  uint64_t SaveOf(uint32_t checkpoint) const;
  uint32_t n_checkpoints() const;  // that are kept
  // How much of `sequence` a slot could give now.
  uint32_t CachedPrefix(const Sequence& sequence) const {
    const PrefixSource kept = BestSource(sequence);
    const StoredPrefix stored = FindStored(sequence);
    return std::max(kept.length, stored.length);
  }
  // How much of `sequence` is in some slot, whether or not a cache can go back to it.
  uint32_t KnownPrefix(const Sequence& sequence) const;

  void DropKept();
  // Forgets all sequences without an owner, wherever they are kept.
  void ForgetKept();
  bool has_kept() const;

  // Continues with another pipeline whose slots have the same contents, but whose stages have no
  // checkpoints. False, and nothing has changed: the pipelines differ, or an edit that restores a
  // checkpoint is pending.
  bool Resume(const PipelineFacts& facts);
  // Clears all slots of the stages before the first step. REQUIRES: the table is new.
  void Empty();

  // The edits for the next step.
  bool has_edits() const { return !edits_.empty(); }
  std::vector<wire::KvEdit> TakeEdits() { return std::exchange(edits_, {}); }

  const Slot& slot(int32_t i) const { return slots_[i]; }
  size_t size() const { return slots_.size(); }
  uint64_t cells_owned() const;  // claims of the owners included
  uint64_t cells_kept() const;
  uint32_t n_kept() const;
  uint64_t cells_max() const { return cells_max_; }
  static uint64_t CellsMaxOf(const PipelineFacts& facts) {
    return facts.kv_cells != 0 ? facts.kv_cells : uint64_t{facts.n_ctx} * facts.n_slots;
  }

 private:
  // How a sequence may begin with the contents of a slot.
  struct PrefixSource {
    int32_t slot = -1;
    uint32_t length = 0;
    bool must_copy = false;
    int32_t checkpoint = -1;  // to go back to; -1: by trim
  };
  struct Checkpoint {
    std::vector<int32_t> tokens;  // whose state it is; empty: none
    bool confirmed = false;       // all stages have it
    uint64_t save = 0;
    uint64_t used = 0;  // rises, with the slots'
    int32_t slot = -1;  // that was saved
  };
  PrefixSource BestSource(const Sequence& sequence) const;
  // How much of a common prefix of `common` tokens the slot can give; 0: nothing.
  PrefixSource Usable(int32_t slot, uint32_t common, const Sequence& sequence) const;
  // The stages can load so much of the sequence: the last token is fed.
  struct StoredPrefix {
    std::vector<KvName> blocks;
    uint32_t length = 0;
  };
  StoredPrefix FindStored(const Sequence& sequence) const;
  void Load(int32_t slot, const Sequence& sequence, const StoredPrefix& stored);
  void SendForget(absl::Span<const KvName> blocks);
  KvIndex IndexOf(const PipelineFacts& facts) const;
  // The longest checkpoint of a beginning of `sequence`, of at most `length` tokens; -1: none.
  int32_t CheckpointOf(absl::Span<const int32_t> sequence, uint32_t length) const;
  PrefixSource FromCheckpoint(int32_t slot, absl::Span<const int32_t> sequence, uint32_t length,
                              bool must_copy) const;
  void Restore(int32_t slot, int32_t checkpoint);
  void GoBack(int32_t slot, const PrefixSource& to);
  int32_t EmptySlot() const;
  int32_t OldestKept(int32_t except) const;
  bool MakeRoom(uint64_t cells, int32_t except);
  wire::KvEdit* AddEdit(wire::KvEdit::Kind kind, int32_t slot);
  bool HasEdit(wire::KvEdit::Kind kind) const;  // for the next step
  static void ClaimWhatIsThere(Slot* s);
  void CutToConfirmed(int32_t slot, wire::KvEdit::Kind kind);
  void Trim(int32_t slot, uint32_t length);
  void CopyInto(int32_t slot, int32_t from);

  // Constant.
  PipelineFacts facts_;
  SchedulerPolicy policy_;
  uint64_t cells_max_;

  std::vector<Slot> slots_;
  std::vector<wire::KvEdit> edits_;
  uint64_t last_used_ = 0;
  std::vector<Checkpoint> checkpoints_;  // [n_checkpoints]
  uint64_t last_save_ = 0;
  KvIndex kv_;
};

}  // namespace strata
