// Gets the weights of a slice onto this machine before a worker loads them: from the model's own
// file where this machine has it, else from the cache, and the cache's missing blocks from the node
// that shares the model, from peers that have loaded layers of it, and from the server that the
// model is on, in parallel (weight_transfer.h). Only the blocks of the slice are requested.
//
// One fetch runs at a time, since they would share the link; the others wait. A fetch runs on the
// fetcher's own threads; its callbacks come from there.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/node.pb.h"
#include "shard/model/architecture.h"
#include "shard/model/model_file.h"
#include "shard/weights/node_weight_source.h"
#include "shard/weights/web_weight_source.h"
#include "shard/weights/weight_cache.h"
#include "shard/weights/weight_queue.h"
#include "shard/weights/weight_transfer.h"

namespace strata {

// Fetches that wait or run.
inline constexpr size_t kFetchesMax = 64;
// Models whose servers are remembered, to fetch from there for other nodes.
inline constexpr size_t kServersMax = 16;

class WeightFetcher {
 public:
  // `cache` may be null: then only files of this machine are found.
  // `token_of`: for servers; may be null.
  explicit WeightFetcher(std::shared_ptr<WeightCache> cache, TokenOf token_of = nullptr);
  // Cancels all fetches and waits for them.
  ~WeightFetcher();

  struct Request {
    std::string model_id;  // empty, with `remote` and headers_only: not known yet
    std::string path;      // tried first: the model's file, if this machine has it
    // host:port of the node that shares the model; empty: there is none, and the peers' hashes are
    // trusted.
    std::string address;
    // Addresses of others that may have blocks; those beyond kWeightSourcesMax - 1 are ignored.
    std::vector<std::string> peers;
    // Where the model is on a server; no parts: on none.
    wire::RemoteModel remote;
    LayerRange layers;
    bool unverified = false;
    // A load found a damaged block in the cache: all blocks are checked again.
    bool check_again = false;
    bool headers_only = false;  // no weights: only the headers, for planning
    absl::Duration idle_max = kWeightIdleMax;
    absl::Duration join_max = kWeightJoinMax;
  };
  struct Fetched {
    std::string path;                           // of the model on this machine
    std::shared_ptr<WeightLease> lease;         // null: not from the cache. Kept while it is loaded
    std::string block_hashes;                   // of the lease's blocks, for the loader
    uint64_t bytes_fetched = 0;                 // of blocks, from other nodes
    std::vector<WeightTransfer::Share> shares;  // by node, the source first
    std::shared_ptr<const ModelFile> headers;   // headers_only; shared with the cache
  };
  struct Callbacks {
    // Bytes checked and fetched so far, of all bytes to check, fetch and then load. The total may
    // grow.
    absl::AnyInvocable<void(uint64_t bytes_done, uint64_t bytes_total)> progress;
    // Called once. kFailedPrecondition: there is no cache, the model is no longer shared, or its
    // file has changed; kPermissionDenied: this node has no token for the server; kUnavailable,
    // with the address: the other node is gone, fetched blocks stay; kDataLoss: it sends bytes that
    // do not match their hash, and no peer has the right ones; kResourceExhausted: no room;
    // kCancelled; else as Slice::Make.
    absl::AnyInvocable<void(absl::StatusOr<Fetched>)> done;
  };

  class Job;
  // Thread-safe. The caller and the fetcher share the job; Cancel() may be called at any time and
  // does not block.
  std::shared_ptr<Job> Start(Request request, Callbacks callbacks);
  static void Cancel(Job* job);

  // The server of a model that was fetched from one lately, shared by all who read from it, so that
  // they share its connections, too; null: none. Thread-safe.
  std::shared_ptr<WeightSource> ServerOf(const std::string& model_id);

  // Destroys a lease on a thread of the fetcher.
  void LetGo(std::shared_ptr<WeightLease> lease);

 private:
  void Run();

  const std::shared_ptr<WeightCache> cache_;  // shared with leases
  const TokenOf token_of_;

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mu_);  // the first one runs
  struct Server {
    std::string model_id;
    wire::RemoteModel remote;
    std::shared_ptr<WebWeightSource> source = nullptr;  // null: nobody has read from it yet
  };
  std::deque<Server> servers_ ABSL_GUARDED_BY(mu_);  // the latest last: kServersMax
  WeightQueue<std::shared_ptr<WeightLease>> released_{kFetchesMax};
  std::thread thread_;
  std::thread releaser_;
};

}  // namespace strata
