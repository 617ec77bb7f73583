// Cached weights of models whose file is on another machine: a folder, bounded in size, with the
// fetched blocks of each model.
//
//   FOLDER/lock                       one process at a time
//   FOLDER/<model id in hex>/model.gguf, or model-00001-of-00003.gguf …
//   FOLDER/<model id in hex>/blocks   the blocks that are there, with their hashes
//
// The model files are sparse: as long and laid out as the originals, with the bytes that the id is
// the hash of and the fetched blocks, and holes elsewhere. So ModelFile and Slice read them like
// any file. A hole reads as zeros: a slice is loaded only when its lease says that nothing is
// missing.
//
// A block's hash is stored after its data has been synced, so a crash costs at most some blocks
// that are fetched again. Later changes to the data are detected by the loader, which hashes all it
// reads (SliceOptions::block_hashes); then all blocks must be checked here. The same holds when
// files are gone, truncated or replaced, which each lease checks. Damaged blocks count as missing.
// Hashes of missing blocks are kept as well, to check other nodes' copies.
//
// Blocks may be read for other nodes without a lease: the reader hashes what it has read.
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

// Thread-safe, but only one fetch at a time adds blocks of a model: each block from one thread, and
// one thread at a time saves. All methods block on the disk.
class WeightCache : public std::enable_shared_from_this<WeightCache> {
 public:
  struct Options {
    std::string folder;      // made if it is not there
    uint64_t bytes_max = 0;  // on disk; 0: half of the free space, including the cache's own
    // Syncs a file's data to the disk; null: by the system. Tests inject failures.
    std::function<absl::Status(int fd, const std::string& path)> sync;
  };
  // Errors name the folder; kFailedPrecondition: another process uses it.
  static absl::StatusOr<std::shared_ptr<WeightCache>> Open(Options options);
  ~WeightCache();

  // Leases the blocks of a slice of the model, which stay until the lease is destroyed. kNotFound:
  // the cache does not know the model, or its copy is damaged: Add() it. Else as Slice::Make.
  absl::StatusOr<std::unique_ptr<WeightLease>> Lease(const std::string& model_id, LayerRange layers,
                                                     SliceOptions options);

  // Bytes of a model's identity (ModelFile::identity).
  struct Piece {
    size_t part = 0;
    uint64_t offset = 0;
    std::string bytes;  // empty: no more
  };
  // Adds a model. `part_bytes` are the sizes of its files, `next` returns its identity.
  // kInvalidArgument: that is not the identity of `model_id`; kResourceExhausted: the disk is full;
  // else the errors of `next`.
  absl::Status Add(const std::string& model_id, absl::Span<const uint64_t> part_bytes,
                   absl::FunctionRef<absl::StatusOr<Piece>()> next);

  // The model's headers; its weights may be holes. kNotFound as Lease().
  absl::StatusOr<std::shared_ptr<const ModelFile>> Headers(const std::string& model_id);

  // The cached blocks of a model, for serving them to other nodes. A snapshot does not keep blocks:
  // bytes that were read (through a later Headers()) are valid only after Confirm(). kNotFound as
  // Lease().
  struct Snapshot {
    uint64_t entry = 0;   // number of the model's copy
    WeightHashes hashes;  // of the blocks that are there
    uint64_t losses = 0;  // blocks lost before the snapshot
  };
  absl::StatusOr<Snapshot> TakeSnapshot(const std::string& model_id) const;
  // Checks a block of `snapshot` that was read: `hash` is the hash of its bytes. kNotFound: the
  // block was removed meanwhile; kDataLoss: it is damaged, and counts as missing from now on.
  absl::Status Confirm(const std::string& model_id, const Snapshot& snapshot, uint32_t block,
                       const std::string& hash);

  const std::string& folder() const { return folder_; }
  uint64_t bytes_max() const { return bytes_max_; }
  uint64_t bytes_used() const;  // on disk

 private:
  friend class WeightLease;

  // A model's open files while there is a lease.
  struct OpenFiles;
  struct Entry {
    std::string id;
    std::string folder;
    uint64_t number = 0;  // unique in this process
    uint64_t last_use = 0;
    uint64_t bytes = 0;                 // on disk
    WeightHashes hashes;                // of the blocks that are there
    WeightHashes missing;               // of other blocks, where known
    uint64_t losses = 0;                // blocks lost since the process started
    std::map<uint32_t, uint64_t> lost;  // the last loss of each, counted from 1
    std::set<uint32_t> suspect;         // blocks of `hashes` that may be damaged
    std::set<uint32_t> unsynced;        // blocks of `hashes` that may not be on the disk yet
    std::weak_ptr<OpenFiles> opened;    // shared by the leases
    std::list<const WeightLease*> leases;
  };

  WeightCache() = default;
  void Scan();
  // kNotFound: the files are damaged; all their blocks are suspect from now on.
  absl::StatusOr<std::shared_ptr<OpenFiles>> OpenEntry(Entry* entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The files may have been replaced: all blocks become suspect, and the entry gets a new number,
  // so that earlier reads count as reads of another copy.
  void MarkSuspect(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t UsedLocked() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Removes data that is not leased, least recently used models first, until `bytes` more fit.
  // Before that, frees unrecorded data of the model of `mine`.
  absl::Status MakeRoom(uint64_t bytes, const WeightLease* mine);
  void Remove(const std::string& model_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Frees blocks of a leased model that no lease except `mine` covers: all, or only missing ones,
  // of which an earlier process may have left data.
  enum class ShrinkScope { kNotLeased, kMissing };
  void Shrink(Entry* entry, OpenFiles* opened, ShrinkScope scope, const WeightLease* mine)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void PunchAround(const OpenFiles& opened, size_t part, uint64_t begin, uint64_t end);
  // The block counts as missing; its hash stays known.
  static void MarkMissing(Entry* entry, uint32_t block);
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
  const std::shared_ptr<const ModelFile>& model() const;
  const WeightBlocks& all_blocks() const;
  const std::vector<uint32_t>& blocks() const { return blocks_; }  // of the slice, ascending

  // The hash of a block that is there, else "".
  std::string HashOf(uint32_t block) const;
  // The hashes of missing blocks: those from Learn(), and those of blocks that were lost.
  WeightHashes KnownMissingHashes() const;
  // Remembers hashes of missing blocks. Save() stores them.
  void Learn(const WeightHashes& hashes);
  std::vector<uint32_t> Missing() const;
  // Blocks that may be damaged: Check() them.
  std::vector<uint32_t> Suspect() const;
  // A loader found a damaged block: all blocks of the lease become suspect.
  void MarkSuspect();
  // The hashes of blocks(), concatenated, for SliceOptions.
  std::string BlockHashes() const;

  // Compares the block with its hash. False: it differs or cannot be read, which is logged, and it
  // counts as missing from now on.
  bool Check(uint32_t block);
  // Drops blocks, so that they are fetched again. kFailedPrecondition: another lease has one of
  // them.
  absl::Status Forget(absl::Span<const uint32_t> blocks);

  // Makes room for the missing blocks. kResourceExhausted: data in use leaves too little of the
  // cache's size, or of the disk.
  absl::Status MakeRoom();
  // `offset` is within the block. kResourceExhausted: the disk is full; the message says how much
  // is missing.
  absl::Status Write(uint32_t block, uint64_t offset, absl::string_view bytes);
  // Starts syncing a block to the disk. May block on a slow disk. REQUIRES: the whole block has
  // been written.
  void StartSaving(uint32_t block);
  // Records a block with its hash. After a failed Save() it stays missing. REQUIRES: the whole
  // block has been written.
  void Finish(uint32_t block, std::string hash);
  // Syncs the data of the finished blocks, then stores their hashes; if only the latter fails, they
  // are fetched again after a restart. An error: the sync failed, and the blocks finished since the
  // last Save() are missing again.
  absl::Status Save();

 private:
  friend class WeightCache;
  WeightLease() = default;

  std::shared_ptr<WeightCache> cache_;              // shared with the node
  std::shared_ptr<WeightCache::OpenFiles> opened_;  // shared with other leases of the model
  WeightCache::Entry* entry_ = nullptr;             // stays while it is leased
  std::vector<uint32_t> blocks_;
  bool disk_failed_ = false;  // guarded by the cache's mu_
};

}  // namespace strata
