// Weights of models that this machine has no file of: a folder, bounded in size, with what was
// fetched of each model.
//
//   FOLDER/lock                       one process at a time
//   FOLDER/<model id in hex>/model.gguf, or model-00001-of-00003.gguf …
//   FOLDER/<model id in hex>/blocks   the blocks that are there, with their hashes
//
// The model files are sparse: as long and laid out as the originals, with the bytes that the id is
// the hash of and the blocks that were fetched, and holes elsewhere. So ModelFile and Slice work on
// them as they are. A hole reads as zeros: nobody loads a slice before its lease says that nothing
// is missing.
//
// A block's hash is written down after its data has been synced, so a crash costs at most some
// blocks that are fetched again. What the disk or somebody else does to the data, whoever loads it
// notices, since he hashes what he reads (SliceOptions::block_hashes); then all is to be checked
// here. So it is when files turn out to be gone, cut short or replaced, which is looked for at each
// lease. What is damaged is missing. Hashes of missing blocks are kept as well, by which others'
// copies can be checked.
//
// What is there may be read to be given to others, without a lease: who reads hashes what he read.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "shard/model/architecture.h"
#include "shard/model/model_file.h"
#include "shard/model/slice.h"
#include "shard/model/weight_blocks.h"

namespace strata {

// "300.0 MiB".
std::string Mebibytes(uint64_t bytes);

class WeightLease;

// Thread-safe; but of each model one fetch at a time adds blocks: each block from one thread, and
// one thread at a time saves. All methods block on the disk.
class WeightCache : public std::enable_shared_from_this<WeightCache> {
 public:
  struct Options {
    std::string folder;      // made if it is not there
    uint64_t bytes_max = 0;  // on disk; 0: half of what is free there, counting what the cache has
    // Puts a file's data onto the disk; null: as the system does it. For tests, to let it fail.
    std::function<absl::Status(int fd, const std::string& path)> sync;
  };
  // Errors name the folder; kFailedPrecondition: another process uses it.
  static absl::StatusOr<std::shared_ptr<WeightCache>> Open(Options options);
  ~WeightCache();

  // The blocks of a slice of the model, which stay until the lease is gone. kNotFound: the cache
  // does not know the model, or what it has of it is damaged: Add() it. Else as Slice::Make.
  absl::StatusOr<std::unique_ptr<WeightLease>> Lease(const std::string& model_id, LayerRange layers,
                                                     SliceOptions options);

  // Bytes of a model's identity (ModelFile::identity).
  struct Piece {
    size_t part = 0;
    uint64_t offset = 0;
    std::string bytes;  // empty: no more
  };
  // Makes the model known. `part_bytes` are the sizes of its files, `next` gives its identity.
  // kInvalidArgument: that is not the identity of `model_id`; kResourceExhausted: the disk is full;
  // else what `next` says.
  absl::Status Add(const std::string& model_id, absl::Span<const uint64_t> part_bytes,
                   absl::FunctionRef<absl::StatusOr<Piece>()> next);

  // The model as far as its headers go; its weights may be holes. kNotFound as Lease().
  absl::StatusOr<std::shared_ptr<const ModelFile>> Headers(const std::string& model_id);

  // What is there of a model, to give it to others. Nothing of it is kept from going: what was read
  // (from Headers(), asked for later) is a block's only after Confirm(). kNotFound as Lease().
  struct Kept {
    uint64_t entry = 0;   // which copy of the model it is
    WeightHashes hashes;  // of the blocks that are there
    uint64_t losses = 0;  // so many had gone until then
  };
  absl::StatusOr<Kept> WhatIsThere(const std::string& model_id) const;
  // `hash` is that of what was read of a block of `kept`. kNotFound: the block has gone meanwhile;
  // kDataLoss: it is damaged, and missing from now on.
  absl::Status Confirm(const std::string& model_id, const Kept& kept, uint32_t block,
                       const std::string& hash);

  const std::string& folder() const { return folder_; }
  uint64_t bytes_max() const { return bytes_max_; }
  uint64_t bytes_used() const;  // on disk

 private:
  friend class WeightLease;

  // A model's files while a lease is on them.
  struct Opened;
  struct Entry {
    std::string id;
    std::string folder;
    uint64_t number = 0;  // no other entry's of this process
    uint64_t last_use = 0;
    uint64_t bytes = 0;                 // on disk
    WeightHashes hashes;                // of the blocks that are there
    WeightHashes missing;               // of others, as far as they are known
    uint64_t losses = 0;                // blocks that have gone, since the process started
    std::map<uint32_t, uint64_t> lost;  // the last loss of each, counted from 1
    std::set<uint32_t> suspect;         // of those that are there: may be damaged
    std::set<uint32_t> unsynced;        // of those, not known to be on the disk yet
    std::weak_ptr<Opened> opened;       // shared by the leases
    std::list<const WeightLease*> leases;
  };

  WeightCache() = default;
  void Scan();
  // kNotFound: what is there is not what it was; nothing of it is trusted any more.
  absl::StatusOr<std::shared_ptr<Opened>> OpenEntry(Entry* entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Its files are others now, or may be: all that is there is suspect, and who has read of the ones
  // before has read of another copy.
  void Distrust(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t UsedLocked() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Removes what nobody has leased, the models not used for longest first, until `bytes` more fit.
  // First of all what the model of `mine` has on the disk without knowing it.
  absl::Status MakeRoom(uint64_t bytes, const WeightLease* mine);
  void Remove(const std::string& model_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Frees blocks of a leased model that no lease covers but `mine`: all, or those that are missing,
  // of which an earlier process may have left data.
  enum class Spare { kNotLeased, kMissing };
  void Shrink(Entry* entry, Opened* opened, Spare spare, const WeightLease* mine)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void PunchAround(const Opened& opened, size_t part, uint64_t begin, uint64_t end);
  // The block is no longer there; its hash stays known.
  static void Lose(Entry* entry, uint32_t block);
  bool IsLeased(const Entry& entry, uint32_t block, const WeightLease* but) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);

  std::string folder_;
  int lock_fd_ = -1;
  uint64_t bytes_max_ = 0;
  std::function<absl::Status(int fd, const std::string& path)> sync_;

  mutable absl::Mutex mu_;
  uint64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);  // by id; nodes never move
};

// The blocks of one slice in the cache. Methods as WeightCache's.
class WeightLease {
 public:
  ~WeightLease();

  const std::string& path() const;  // of the model in the cache: its file or first part
  const WeightBlocks& all_blocks() const;
  const std::vector<uint32_t>& blocks() const { return blocks_; }  // of the slice, ascending

  // The hash of a block that is there, else "".
  std::string HashOf(uint32_t block) const;
  // The hashes of blocks that are not there and that Learn() was told, or that were there once.
  WeightHashes KnownOfMissing() const;
  // Keeps hashes of blocks that are missing. Save() writes them down.
  void Learn(const WeightHashes& hashes);
  std::vector<uint32_t> Missing() const;
  // Those that are there and may be damaged: Check() them.
  std::vector<uint32_t> Suspect() const;
  // Whoever loaded a block found it damaged: all of them may be.
  void Distrust();
  // Of blocks(), one after the other, as SliceOptions wants them.
  std::string BlockHashes() const;

  // Compares the block with its hash. False: it differs or cannot be read, which the log says, and
  // is missing from now on.
  bool Check(uint32_t block);
  // Takes blocks away, to be fetched again. kFailedPrecondition: another lease has one of them.
  absl::Status Forget(absl::Span<const uint32_t> blocks);

  // Makes room for what is missing. kResourceExhausted: what is in use leaves too little of the
  // cache's size, or of the disk.
  absl::Status MakeRoom();
  // `offset` is in the block. kResourceExhausted: the disk is full; says how much is missing.
  absl::Status Write(uint32_t block, uint64_t offset, absl::string_view bytes);
  // The block, all of which has been written, goes to the disk from now on. May wait for a slow
  // one.
  void StartSaving(uint32_t block);
  // All of the block has been written, and `hash` is its hash. After a Save() that failed it stays
  // missing.
  void Finish(uint32_t block, std::string hash);
  // Syncs the data of the blocks finished so far, then writes down that they are there; if only the
  // latter fails, they are fetched again after a restart. An error: the disk did not take the data,
  // and what was finished since the last time is missing again.
  absl::Status Save();

 private:
  friend class WeightCache;
  WeightLease() = default;

  std::shared_ptr<WeightCache> cache_;           // shared with the node
  std::shared_ptr<WeightCache::Opened> opened_;  // shared with other leases of the model
  WeightCache::Entry* entry_ = nullptr;          // stays while it is leased
  std::vector<uint32_t> blocks_;
  bool disk_failed_ = false;  // the cache's mu_
};

}  // namespace strata
