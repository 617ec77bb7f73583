// The blocks that a slice lacks, from all nodes that have them at once: the source, which has the
// model's file, and peers, which have loaded layers of it before.
//
// Each node is asked for a few blocks at a time, as many as it sends in half a second, so a faster
// one gives more; two requests at a time, so that the way to it is not idle between them. What only
// one node has is asked for first. Which bytes a block should have is the source's word alone: it
// tells the hashes of what peers have, and where it has gone, hashes that it told earlier do; where
// there is none any more, also those that it told the peers. A block with other bytes is refused,
// and its node is not asked for it again.
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

// Nodes that one fetch asks, with the source.
inline constexpr size_t kWeightSourcesMax = 8;
// Requests under way to each.
inline constexpr size_t kWeightLanes = 2;
// Of one request: half a second's worth within these bounds, but no more than a fair share of what
// is left, and a block at least.
inline constexpr uint64_t kWeightRequestBytesMin = 16u << 20;
inline constexpr uint64_t kWeightRequestBytesMax = 256u << 20;
// Blocks with wrong bytes, or that a node did not have after all, until it is asked no more.
inline constexpr int kRefusedBlocksMax = 3;
// The source's first requests wait so long for peers that have not answered yet, so that these
// share the work from the beginning.
inline constexpr absl::Duration kWeightJoinMax = absl::Milliseconds(500);

// Bytes done of bytes to do, told as they change. Thread-safe.
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
  // `sources`: the one with the file first; `source` says whether that one is connected and has
  // the model, else why not. The peers are not connected yet. All outlive this.
  struct Options {
    WeightLease* lease = nullptr;
    std::vector<WeightSource*> sources;
    absl::Status source;
    bool no_source = false;  // peers are believed; `source` says why
    WeightProgress* progress = nullptr;
    absl::Duration join_max = kWeightJoinMax;
  };
  explicit WeightTransfer(Options options);

  // Fetches what the lease lacks. Once. kDataLoss: a block has wrong bytes wherever it is had from;
  // kResourceExhausted: the disk; else why the source, or the last one, does not give what is left.
  // What came stays. When it ends, all sources are cancelled.
  absl::Status Run();
  // Any thread; does not block.
  void Cancel();

  // After Run().
  struct Share {
    std::string address;
    uint64_t bytes = 0;  // of blocks that were taken
    absl::Status why;    // not OK: why it gave no more
  };
  std::vector<Share> shares() const;

 private:
  class Batch;  // one request
  struct Wanted {
    enum class State { kPending, kTaken, kDone };
    uint32_t block = 0;
    uint64_t bytes = 0;
    State state = State::kPending;
    uint64_t taken_by = 0;    // kTaken: the number of its request
    std::string hash;         // as the source told; "": not known
    bool hash_asked = false;  // the source has answered, and may not have told
    uint32_t not_of = 0;      // a bit for each node that did not have it, or not its bytes
    uint32_t wrong_of = 0;    // those that sent other bytes
  };
  struct Giver {
    enum class State { kJoining, kGiving, kGone };
    WeightSource* source = nullptr;
    State state = State::kJoining;
    std::vector<bool> has;  // [wanted_]
    int refused = 0;
    uint64_t bytes = 0;
    double bytes_per_s = 0;  // of one lane; 0: not known yet
    absl::Status why;        // kGone
  };

  void Lane(size_t giver, bool first);
  void Join(size_t giver);
  // Blocks for `giver` to give, by places in wanted_, ascending. Waits; none: no more.
  struct Taken {
    uint64_t number = 0;
    std::vector<size_t> places;
  };
  Taken Take(size_t giver);
  void ReadBatch(size_t giver, const Taken& taken);
  void RunHashes();
  absl::Status Save();

  // Whether its word on a block does where no hash of it is known.
  bool IsBelieved(size_t giver) const { return giver == 0 || no_source_; }
  bool MayGive(size_t giver, const Wanted& wanted, size_t place) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool Ended() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return n_left_ == 0 || !failed_.ok(); }
  void Leave(size_t giver, absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `wrong`: it sent the block with other bytes. Whether it is asked for others.
  bool Refuse(size_t giver, size_t place, bool wrong, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Fails where something can be had from nobody any more.
  void CheckThatAllCanCome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status WhyNot(const Wanted& wanted) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void UseKeptHashes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fail(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  WeightLease* const lease_;
  WeightProgress* const progress_;
  const absl::Duration join_max_;
  const bool no_source_;

  absl::Mutex save_mu_;  // before mu_

  mutable absl::Mutex mu_;
  std::vector<Wanted> wanted_ ABSL_GUARDED_BY(mu_);  // the vector and its blocks are constant
  std::vector<Giver> givers_ ABSL_GUARDED_BY(mu_);
  size_t n_left_ ABSL_GUARDED_BY(mu_) = 0;  // not kDone
  uint64_t last_taken_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t pending_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // kPending
  uint64_t unsaved_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  SteadyTime join_until_ ABSL_GUARDED_BY(mu_);
  bool learnt_ ABSL_GUARDED_BY(mu_) = false;  // the source has told all hashes that it knows
  bool hashes_may_come_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
