// What stands in each slot of the KV caches, for the scheduler: who owns it, how much of it every
// stage has confirmed, what edits are to travel with the next step, and which kept sequence a new
// text may go on from. No I/O, one thread.
//
// Edits and rows travel in one order through all stages, so that what is written here is so for
// every step that is formed later. Only a step that fails makes a slot other than it is written:
// ResetAfterFailure() or RollBack() puts that right.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/scheduler/scheduler_types.h"
#include "proto/frame.pb.h"

namespace strata {

class SlotTable {
 public:
  struct Slot {
    std::vector<int32_t> tokens;  // what stands there once every step formed so far is done
    uint32_t confirmed = 0;       // of them, which all stages have
    uint32_t whole = 0;  // of them, fed in chunks of ExactChunk(): other texts' would be so
    uint32_t claim = 0;  // cells that its owner is about to fill, `tokens` included
    uint64_t owner = 0;  // a request; 0: nobody, and `tokens` are kept
    // Rises when the slot starts anew. What is in flight under an older number says nothing any
    // more about the slot.
    uint64_t generation = 0;
    bool shifted = false;  // not what feeding `tokens` gives: no prefix of anything
    // A cache may hold a copy in the same cells, which have one position for all that use them: so
    // what was copied, from or to, since the slot was empty is not shifted.
    bool shared = false;
    bool may_shift = false;  // its owner's context: nobody copies from it, nor it from anybody
    uint64_t used = 0;       // rises; the least was not used for longest
    std::pair<int32_t, uint64_t> copied_from = {-1, 0};  // slot, its generation
  };

  SlotTable(const PipelineFacts& facts, const SchedulerPolicy& policy);

  // Gives `owner` a slot for a text whose KV is to be `text`, with the longest prefix that the
  // caches can restore; at least its last token is left to feed. Kept sequences are dropped for it
  // as needed, the least recently used first. nullopt: no slot, or no room beside those who own
  // one. `may_shift`: Shift() may come.
  struct Place {
    int32_t slot = 0;
    uint32_t cached = 0;  // tokens of `text` that stand there
  };
  std::optional<Place> Acquire(uint64_t owner, absl::Span<const int32_t> text, bool may_shift);

  // Room for so many cells that no owner has claimed, if need be by dropping kept sequences. False:
  // the owners fill the caches.
  bool MakeRoom(uint64_t cells) { return MakeRoom(cells, -1); }

  // Rows that the step being formed feeds.
  void Append(int32_t slot, int32_t token) { slots_[slot].tokens.push_back(token); }
  // The last rows were a whole chunk of a prompt.
  void EndChunk(int32_t slot) {
    slots_[slot].whole = static_cast<uint32_t>(slots_[slot].tokens.size());
  }
  // A step of generation `generation` is done in all stages: the slot has `length` positions.
  void Confirm(int32_t slot, uint64_t generation, uint32_t length);

  // The owner leaves. `keep`: its tokens stay for others.
  void Release(int32_t slot, bool keep);
  // Forgets what stands in the slot, in every stage, whatever happened to it; the owner stays.
  void Reset(int32_t slot);
  // The same where a step failed that had touched it, and for copies of it that are kept: they may
  // have missed the same rows. `lost`: a stage may have lost what was confirmed, too, and an
  // owner's copy, which has nothing else, with it. Of the slot's generation `generation`; where it
  // has started anew since, of the copies only. Returns the owners of what was forgotten.
  std::vector<uint64_t> ResetAfterFailure(int32_t slot, uint64_t generation, bool lost);
  // Back to what is confirmed, in every stage. Where CanRollBack().
  void RollBack(int32_t slot);
  bool CanRollBack() const { return facts_.cache.trim && facts_.cache.window_tokens == 0; }
  // Forgets [keep, keep + discard) and moves what follows down into its place. All that the slot
  // has is confirmed.
  void Shift(int32_t slot, uint32_t keep, uint32_t discard);
  // The owner is about to fill the slot up to `length`; there is room.
  void Claim(int32_t slot, uint32_t length) { slots_[slot].claim = length; }
  // Saves the slot as it is now in every stage, for texts with the same beginning; the checkpoint
  // that was not used for longest goes for it.
  void Save(int32_t slot);
  // Whether a cache that cannot trim can go back to where it was saved. Not to the last bit: a
  // window may lie in other cells then.
  bool wants_checkpoints() const {
    return policy_.keep_prefixes && !policy_.exact && facts_.cache.checkpoint &&
           !checkpoints_.empty();
  }
  // What came of the step that saved `checkpoint` for the `save`th time. Until it is confirmed
  // nobody goes back to it.
  void ConfirmSave(uint32_t checkpoint, uint64_t save);
  void ForgetSave(uint32_t checkpoint, uint64_t save);
  // Of a slot that a failed step had touched: stages may have saved different things.
  void ForgetSavesOf(int32_t slot);
  uint64_t SaveOf(uint32_t checkpoint) const;
  uint32_t n_checkpoints() const;  // that are kept
  // How much of `text` can be had from a slot now.
  uint32_t CachedPrefix(absl::Span<const int32_t> text) const {
    return BestSource(text, /*may_shift=*/false).length;
  }
  // How much of `text` stands in some slot, whether or not a cache can go back to it.
  uint32_t KnownPrefix(absl::Span<const int32_t> text) const;

  void DropKept();
  bool has_kept() const;

  // Another pipeline's slots hold what these do, but its stages know nothing of checkpoints. False,
  // and nothing has changed: it is not like this one, or a slot is on its way back to a checkpoint.
  bool Resume(const PipelineFacts& facts);
  // Whatever stands in the slots of the stages goes before the first step; the table is new.
  void Empty();

  // The edits for the next step.
  bool has_edits() const { return !edits_.empty(); }
  std::vector<wire::KvEdit> TakeEdits() { return std::exchange(edits_, {}); }

  const Slot& slot(int32_t i) const { return slots_[i]; }
  size_t size() const { return slots_.size(); }
  uint64_t cells_owned() const;  // with what their owners claim
  uint64_t cells_kept() const;
  uint32_t n_kept() const;
  uint64_t cells_max() const { return cells_max_; }

 private:
  // How a text may begin with what a slot holds.
  struct Source {
    int32_t slot = -1;
    uint32_t length = 0;
    bool must_copy = false;
    int32_t checkpoint = -1;  // to go back to; -1: by trim
  };
  struct Checkpoint {
    std::vector<int32_t> tokens;  // of which it is the state; empty: none
    bool confirmed = false;       // all stages have it
    uint64_t save = 0;
    uint64_t used = 0;  // rises, with the slots'
    int32_t slot = -1;  // whose it was
  };
  Source BestSource(absl::Span<const int32_t> text, bool may_shift) const;
  // How much of a common prefix of `common` tokens the slot can give; 0: nothing.
  Source Usable(int32_t slot, uint32_t common, absl::Span<const int32_t> text,
                bool may_shift) const;
  // The longest state of a beginning of `text`, of at most `length` tokens; -1: none.
  int32_t CheckpointOf(absl::Span<const int32_t> text, uint32_t length) const;
  Source FromCheckpoint(int32_t slot, absl::Span<const int32_t> text, uint32_t length,
                        bool must_copy) const;
  void Restore(int32_t slot, int32_t checkpoint);
  void GoBack(int32_t slot, const Source& to);
  int32_t EmptySlot() const;
  int32_t OldestKept(int32_t except) const;
  bool MakeRoom(uint64_t cells, int32_t except);
  wire::KvEdit* AddEdit(wire::KvEdit::Kind kind, int32_t slot);
  static void ClaimWhatIsThere(Slot* s);
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
};

}  // namespace strata
