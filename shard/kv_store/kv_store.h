// KV blocks of one stage on the disk, so that a prompt that was processed once need not be again:
// not by another slot, nor after the model was unloaded, nor after the node was restarted. The
// coordinator decides what is kept and for how long (coordinator/scheduler/kv_index.h).
//
//   FOLDER/key                        the secret that all blocks are encrypted with, mode 0600
//   FOLDER/<hash>/lock, about         one store at a time; what it is of (kv_folder.h)
//   FOLDER/<hash>/<encrypted name>    a block (kv_cipher.h), mode 0600
//
// <hash> is of all that decides which bytes are right: the model, the layers, the type of the
// cache, the device, libllama. So a block of another model, of an older libllama, or copied from
// another node's folder is not found. Files are written without a sync: a block that a power cut
// has cut short is damaged, which is noticed, and costs what it would have saved.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/node.pb.h"
#include "shard/kv_store/kv_block.h"
#include "shard/kv_store/kv_cipher.h"
#include "shard/kv_store/kv_cuts.h"

namespace strata {

// Of blocks that wait to be written; more are lost.
inline constexpr uint64_t kKvWaitingBytesMax = 512 << 20;

// Follows what a store keeps, such as to copy it to another node
// (shard/kv_transfer/kv_replicator.h).
class KvFollower {
 public:
  virtual ~KvFollower() = default;
  virtual wire::ReplicaStatus status() const = 0;  // any thread
};

// Of one thread, but for what says otherwise; a thread of its own writes what Put() has taken.
class KvStore {
 public:
  struct Options {
    std::string folder;                   // of all stores of the node; made if it is not there
    wire::KvIdentity identity;            // of the blocks, as above
    uint64_t bytes_max = 0;               // of this store's files
    uint64_t others_bytes_max = 0;        // of stores that nobody has open; the oldest are removed
    uint64_t all_bytes_max = UINT64_MAX;  // the same together with what is in those that are open
    bool waits = true;                    // for a moment where another has it, which may be leaving
  };
  // Blocks on the disk. Errors name the folder; kFailedPrecondition: another process has the store.
  static absl::StatusOr<std::unique_ptr<KvStore>> Open(Options options);
  // Ends its followers, and waits until everything is written.
  ~KvStore();

  // From now on blocks are also made of what stores of other layers have of them (kv_cuts.h), by
  // `join`. Looks through all stores of the node.
  using Join = std::function<absl::StatusOr<std::string>(absl::Span<const KvCuts::Part>)>;
  void UseCuts(Join join);

  // Of the blocks that are there, or can be made, the least recently used first.
  std::vector<KvName> Names() const;

  // Takes a block, instead of one of that name that is there. Does not wait for the disk. A block
  // that cannot be kept is lost (TakeLost()), with one line in the log; so are the least recently
  // used ones where there is no room for it. Put the last of a sequence's blocks first.
  void Put(const KvCipher::BlockId& id, std::string bytes);
  // kNotFound: it is not there; kDataLoss: it is damaged, or of another scope; or what
  // UseCuts() was given says. In all cases it is lost. What was made is kept, as by Put(). Blocks
  // on the disk.
  absl::StatusOr<std::string> Get(const KvCipher::BlockId& id);
  // A sequence's first blocks: they count as used now, the first one last, as those behind them are
  // of no use alone. Their files stay as old as they are.
  void Use(absl::Span<const KvName> names);
  void Forget(const KvName& name);

  // The blocks that were lost since the last call.
  std::vector<KvName> TakeLost();

  const std::string& folder() const { return folder_; }
  const wire::KvIdentity& identity() const { return identity_; }
  uint64_t bytes_max() const { return bytes_max_; }
  uint64_t bytes_used() const;     // any thread
  uint64_t waiting_bytes() const;  // to be written; any thread

  using Followers = std::vector<std::unique_ptr<KvFollower>>;
  // Replaces the followers, which end with the store at the latest, by those of `make`; those that
  // were made for the same `targets` stay. Returns the others, for the caller to destroy, which
  // waits for what they are doing. Any thread.
  Followers ReplaceFollowers(const std::string& targets, absl::FunctionRef<Followers()> make);
  std::vector<wire::ReplicaStatus> FollowerStatus() const;  // any thread

  // These methods are for followers, on any thread. Of blocks that were neither put nor read since
  // the store was opened, nobody has told the scope.
  struct Kept {
    KvName name;
    std::optional<std::string> scope;  // nullopt: not known
    uint64_t bytes = 0;                // of its file
  };
  std::vector<Kept> KeptBlocks() const;  // the most recently used first
  // Waits until there have been other changes of what is kept than `seen`, or for `limit`. Returns
  // their number.
  uint64_t AwaitChange(uint64_t seen, absl::Duration limit) const;
  void Wake();  // ends AwaitChange(), as a change does
  // Reads blocks on a thread of its own. Errors as Open()'s.
  class Reader {
   public:
    // As Get(), but nothing is lost, and the block does not count as used.
    absl::StatusOr<std::string> Read(const KvCipher::BlockId& id) const;

   private:
    friend class KvStore;
    Reader(const KvStore* store, KvCipher cipher) : store_(store), cipher_(std::move(cipher)) {}
    const KvStore* store_;
    KvCipher cipher_;
  };
  absl::StatusOr<Reader> NewReader() const;  // which the store outlives

 private:
  struct Unwritten {
    std::string scope;
    std::string bytes;
  };
  struct Block {
    uint64_t bytes = 0;                // of its file
    int64_t used = 0;                  // when it was taken or read, by the file system's clock
    std::optional<std::string> scope;  // nullopt: not known
    // To be written, shared with the writer; null: it is on the disk.
    std::shared_ptr<const Unwritten> waiting;
  };
  // A cipher is of one thread.
  struct Ciphers {
    KvCipher caller, writer;
  };

  KvStore(Options options, std::string folder, Ciphers ciphers, int lock_fd);
  void Scan();
  void RunWriter();
  absl::Status Write(const KvName& name, const Unwritten& block) const;
  void OnWritten(const KvName& name, const std::shared_ptr<const Unwritten>& block,
                 const absl::Status& status);
  std::string PathOf(const KvCipher& cipher, const KvName& name) const {
    return folder_ + "/" + cipher.FileOf(name);
  }
  absl::StatusOr<std::string> GetFromCuts(const KvCipher::BlockId& id);
  // The least recently used first.
  std::vector<KvName> NamesByUse() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void Lose(const KvName& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Erase(const KvName& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string root_;
  const wire::KvIdentity identity_;
  const std::string folder_;
  const Ciphers ciphers_;
  const int lock_fd_;
  const uint64_t bytes_max_;
  Join join_;
  std::optional<KvCuts> cuts_;

  mutable absl::Mutex mu_;
  std::map<KvName, Block> blocks_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_used_ ABSL_GUARDED_BY(mu_) = 0;      // by all of blocks_
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;   // of those that wait
  std::deque<KvName> to_write_ ABSL_GUARDED_BY(mu_);  // some may have been forgotten
  std::vector<KvName> lost_ ABSL_GUARDED_BY(mu_);
  bool has_failed_ ABSL_GUARDED_BY(mu_) = false;  // the last block, which was logged
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t changes_ ABSL_GUARDED_BY(mu_) = 0;  // of blocks_' names and scopes, and Wake()
  std::thread writer_;
  mutable absl::Mutex followers_mu_;
  std::string targets_ ABSL_GUARDED_BY(followers_mu_);  // of followers_
  Followers followers_ ABSL_GUARDED_BY(followers_mu_);
};

}  // namespace strata
