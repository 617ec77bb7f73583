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
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "proto/node.pb.h"
#include "shard/kv_store/kv_block.h"
#include "shard/kv_store/kv_cipher.h"

namespace strata {

// Of one thread; a thread of its own writes what Put() has taken.
class KvStore {
 public:
  struct Options {
    std::string folder;             // of all stores of the node; made if it is not there
    std::string identity;           // of the blocks, as above
    wire::KvCacheAbout about;       // the same for people
    uint64_t bytes_max = 0;         // of this store's files
    uint64_t others_bytes_max = 0;  // of stores that nobody has open; the oldest are removed
  };
  // Blocks on the disk. Errors name the folder; kFailedPrecondition: another process has the store.
  static absl::StatusOr<std::unique_ptr<KvStore>> Open(Options options);
  // Waits until everything is written.
  ~KvStore();

  // Of the blocks that are there, the least recently used first.
  std::vector<KvName> Names() const;

  // Takes a block, instead of one of that name that is there. Does not wait for the disk. A block
  // that cannot be kept is lost (TakeLost()), with one line in the log; so are the least recently
  // used ones where there is no room for it. Put the last of a sequence's blocks first.
  void Put(const KvCipher::BlockId& id, std::string bytes);
  // kNotFound: it is not there; kDataLoss: it is damaged, or of another scope. In both cases it is
  // lost. Blocks on the disk.
  absl::StatusOr<std::string> Get(const KvCipher::BlockId& id);
  void Forget(const KvName& name);

  // The blocks that were lost since the last call.
  std::vector<KvName> TakeLost();

  const std::string& folder() const { return folder_; }
  uint64_t bytes_max() const { return bytes_max_; }
  uint64_t bytes_used() const;  // any thread

 private:
  struct Unwritten {
    std::string scope;
    std::string bytes;
  };
  struct Block {
    uint64_t bytes = 0;  // of its file
    int64_t used = 0;    // when it was taken or read, by the file system's clock
    // To be written, shared with the writer; null: it is on the disk.
    std::shared_ptr<const Unwritten> waiting;
  };
  // A cipher is of one thread.
  struct Ciphers {
    KvCipher caller, writer;
  };

  KvStore(std::string folder, Ciphers ciphers, int lock_fd, uint64_t bytes_max);
  void Scan();
  void RunWriter();
  absl::Status Write(const KvName& name, const Unwritten& block) const;
  void OnWritten(const KvName& name, const std::shared_ptr<const Unwritten>& block,
                 const absl::Status& status);
  std::string PathOf(const KvCipher& cipher, const KvName& name) const {
    return folder_ + "/" + cipher.FileOf(name);
  }
  void Lose(const KvName& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Erase(const KvName& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string folder_;
  const Ciphers ciphers_;
  const int lock_fd_;
  const uint64_t bytes_max_;

  mutable absl::Mutex mu_;
  std::map<KvName, Block> blocks_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_used_ ABSL_GUARDED_BY(mu_) = 0;      // by all of blocks_
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;   // of those that wait
  std::deque<KvName> to_write_ ABSL_GUARDED_BY(mu_);  // some may have been forgotten
  std::vector<KvName> lost_ ABSL_GUARDED_BY(mu_);
  bool has_failed_ ABSL_GUARDED_BY(mu_) = false;  // the last block, which was logged
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread writer_;
};

}  // namespace strata
