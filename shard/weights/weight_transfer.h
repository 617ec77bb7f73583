// Fetches the missing blocks of a slice from several nodes in parallel: the source, which has the
// model's file, and peers, which have loaded layers of it before; and from a web server what none
// of them has.
//
// Each node gets requests for a few blocks, as many as it sends in half a second, so a faster one
// gives more; two requests overlap, so that the link is not idle between them. Blocks that only one
// node has are requested first. Only the source decides which bytes a block should have: it reports
// the hashes of the peers' blocks, and when it is gone, its earlier hashes are used; without a
// source, also those that it gave to the peers. A block with other bytes is refused, and not
// requested again from that node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "shard/model/weight_blocks.h"
#include "shard/weights/weight_cache.h"
#include "shard/weights/weight_source.h"
#include "transport/base/steady_time.h"

namespace strata {

// Nodes that one fetch uses, including the source.
inline constexpr size_t kWeightSourcesMax = 8;
// Requests in flight to each, and to a server.
inline constexpr size_t kWeightLanes = 2, kServerLanes = 4;
// Bytes of one request: half a second's worth within these bounds, but no more than a fair share of
// the rest, and at least a block.
inline constexpr uint64_t kWeightRequestBytesMin = 16u << 20;
inline constexpr uint64_t kWeightRequestBytesMax = 256u << 20;
// After this many wrong or missing blocks a node gets no more requests.
inline constexpr int kRefusedBlocksMax = 3;
// How long the source's first requests wait for peers that have not answered yet, so that peers
// share the work from the beginning.
inline constexpr absl::Duration kWeightJoinMax = absl::Milliseconds(500);

// Reports bytes done and total bytes on every change. Thread-safe.
class WeightProgress {
 public:
  using Callback = absl::AnyInvocable<void(uint64_t done, uint64_t total)>;
  explicit WeightProgress(Callback callback) : callback_(std::move(callback)) {}
  void Add(uint64_t done_bytes, uint64_t more_bytes = 0) {
    absl::MutexLock lock(mu_);
    total_ += more_bytes;
    done_ += done_bytes;
    callback_(done_, total_);
  }

 private:
  absl::Mutex mu_;
  Callback callback_ ABSL_GUARDED_BY(mu_);
  uint64_t done_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t total_ ABSL_GUARDED_BY(mu_) = 0;
};

class WeightTransfer {
 public:
  // `sources`: the node with the file first; `source`: OK if that node is connected and has the
  // model, else why not. The peers are not connected yet. All outlive this.
  struct Options {
    WeightLease* lease = nullptr;
    std::vector<WeightSource*> sources;
    absl::Status source;
    bool no_source = false;          // peers are trusted; `source` says why
    WeightSource* server = nullptr;  // has all blocks, and is trusted; null: there is none
    // With a server: blocks that a peer is to fetch from it. They are taken from there, as soon as
    // it has them, and from the server only if no peer gets any blocks for some time.
    std::vector<uint32_t> of_peers;
    WeightProgress* progress = nullptr;
    absl::Duration join_max = kWeightJoinMax;
  };
  explicit WeightTransfer(Options options);

  // Fetches the lease's missing blocks. At most once. kDataLoss: all nodes have wrong bytes of a
  // block; kResourceExhausted: the disk is full; else why the source, or the last node, does not
  // give the rest. Fetched blocks stay. At the end all sources are cancelled.
  absl::Status Run();
  // Any thread; does not block.
  void Cancel();

  // After Run().
  struct Share {
    std::string address;
    uint64_t bytes = 0;  // of accepted blocks
    absl::Status why;    // not OK: why it gave no more
  };
  std::vector<Share> shares() const;

 private:
  class Batch;  // one request
  struct MissingBlock {
    enum class State { kPending, kAssigned, kDone };
    uint32_t block = 0;
    uint64_t bytes = 0;
    State state = State::kPending;
    uint64_t assigned_to = 0;       // kAssigned: the number of its request
    std::string hash;               // from the source; "": not known
    bool hash_requested = false;    // the source has answered, maybe without it
    bool of_peer = false;           // as of Options::of_peers
    uint32_t unavailable_from = 0;  // a bit for each node that did not have it, or had wrong bytes
    uint32_t wrong_from = 0;        // nodes that sent wrong bytes
  };
  struct Provider {
    enum class State { kJoining, kActive, kGone };
    WeightSource* source = nullptr;
    State state = State::kJoining;
    std::vector<bool> has;  // [missing_]
    size_t n_listed = 0;    // blocks of the model that it had at last
    int refused = 0;
    uint64_t bytes = 0;
    double bytes_per_s = 0;  // of one lane; 0: not known yet
    absl::Status why;        // kGone
  };

  void Lane(size_t provider, bool first);
  void Join(size_t provider);
  // Sets what it has; errors of WeightSource::List().
  absl::Status ListBlocks(size_t provider);
  // Of missing blocks that it has.
  WeightHashes KnownHashes(size_t provider);
  // Blocks for one request to a node, as ascending places in missing_.
  struct Assignment {
    uint64_t number = 0;
    std::vector<size_t> places;
  };
  // Waits for blocks that `provider` can give; empty: no more.
  Assignment Take(size_t provider);
  void ReadBatch(size_t provider, const Assignment& assignment);
  void RunHashes();
  // Lists the peers' blocks again while blocks are missing that they are to fetch.
  void WatchPeers();
  absl::Status Save();

  // Whether a block whose hash is not known may come from this node.
  bool IsTrusted(size_t provider) const {
    return provider == 0 || provider == server_ || no_source_;
  }
  size_t LanesOf(size_t provider) const {
    return provider == server_ ? kServerLanes : kWeightLanes;
  }
  bool CanProvide(size_t provider, const MissingBlock& missing, size_t place) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool Ended() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return n_left_ == 0 || !failed_.ok(); }
  void Leave(size_t provider, absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Records that the node did not give the block; `wrong`: it sent wrong bytes. Returns whether to
  // continue with this node.
  bool Refuse(size_t provider, size_t place, bool wrong, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Fails the transfer if no node can give some block any more.
  void CheckAllObtainable() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status UnobtainableError(const MissingBlock& missing) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void UseStoredHashes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fail(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  WeightLease* const lease_;
  WeightProgress* const progress_;
  const absl::Duration join_max_;
  const bool no_source_;
  size_t server_ = SIZE_MAX;  // of the providers, the last one; constant

  absl::Mutex save_mu_;  // before mu_

  mutable absl::Mutex mu_;
  std::vector<MissingBlock> missing_
      ABSL_GUARDED_BY(mu_);  // the vector and its blocks are constant
  std::vector<Provider> providers_ ABSL_GUARDED_BY(mu_);
  size_t n_left_ ABSL_GUARDED_BY(mu_) = 0;  // not kDone
  uint64_t last_assignment_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t pending_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // kPending
  uint64_t unsaved_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  SteadyTime saved_at_ ABSL_GUARDED_BY(mu_);
  SteadyTime join_until_ ABSL_GUARDED_BY(mu_);
  bool hashes_learnt_ ABSL_GUARDED_BY(mu_) = false;  // the source has sent its known hashes
  bool hashes_may_come_ ABSL_GUARDED_BY(mu_) = false;
  bool peers_have_time_ ABSL_GUARDED_BY(mu_) = true;  // for the blocks that they are to fetch
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
