// The gRPC service wire.Weights: sends the weights of models that this node shares, and cached
// blocks of others, to the nodes that hold their stages. A request names a model by its id and
// blocks by their numbers, so nothing else on this machine can be read.
//
// Blocks of a file are hashed when they are first read for a node; the hashes are stored in the
// node's data folder, under the file's path, size, times and inode, and sent with the blocks. A
// file that is written to while it is read is not served any further. By the hashes a node detects
// blocks of another file with the same id (ModelFile::id() does not cover all data), and requests
// nothing that it has already. Blocks of the cache are hashed on every read: a damaged block, or
// one that was dropped meanwhile, is refused before its end.
//
// The calls run on threads of gRPC's synchronous server, since they wait for the disk.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/weights.grpc.pb.h"
#include "shard/model/model_file.h"
#include "shard/model/weight_blocks.h"
#include "shard/weights/weight_cache.h"
#include "shard/weights/weight_source.h"

namespace strata {

// Models shared at the same time; beyond that, the one shared least recently is forgotten.
inline constexpr size_t kSharedModelsMax = 16;
// Cached models whose headers are kept for readers; beyond that, the first opened is closed.
inline constexpr size_t kCachedModelsMax = 4;
// Calls that read weights at the same time: a thread and a few MiB each.
inline constexpr int kWeightReadsMax = 64;
inline constexpr size_t kWeightChunkBytes = 1u << 20;
// Chunks between the disk and the network.
inline constexpr size_t kWeightChunksMax = 4;

class WeightService final : public wire::Weights::Service {
 public:
  // The server that this node fetches the blocks of a model from, shared by all calls; null: none,
  // or not known. Any thread.
  using ServerOf = std::function<std::shared_ptr<WeightSource>(const std::string& model_id)>;
  // `hashes_folder` stores the hashes, and is created if needed; empty: only in memory. `cache`,
  // shared with the fetcher, may be null: then only shared models are served. `server_of`, if not
  // null: of cached models, missing blocks are read from there for nodes that cannot themselves.
  explicit WeightService(std::string hashes_folder, std::shared_ptr<WeightCache> cache = nullptr,
                         ServerOf server_of = nullptr);
  ~WeightService() override;

  // ModelFile::file_key() of a shared model, by the path of its file or of any part; "": none is
  // shared by that path. Does not block.
  std::string FileKeyOf(const std::string& path) const;

  // Bytes of blocks since the start; for tests and statistics.
  uint64_t bytes_sent() const { return bytes_sent_; }
  uint64_t bytes_hashed() const { return bytes_hashed_; }

  grpc::Status ShareModel(grpc::ServerContext* context, const wire::ShareModelRequest* request,
                          wire::ShareModelResponse* response) override;
  grpc::Status DescribeModel(grpc::ServerContext* context,
                             const wire::DescribeModelRequest* request,
                             grpc::ServerWriter<wire::ModelPiece>* writer) override;
  grpc::Status ListBlocks(grpc::ServerContext* context, const wire::ListBlocksRequest* request,
                          wire::BlockList* response) override;
  grpc::Status HashBlocks(grpc::ServerContext* context, const wire::BlocksRequest* request,
                          grpc::ServerWriter<wire::BlockHashes>* writer) override;
  grpc::Status ReadBlocks(grpc::ServerContext* context, const wire::BlocksRequest* request,
                          grpc::ServerWriter<wire::BlockChunk>* writer) override;

 private:
  struct ServedModel;                                   // a model that others may read
  using ServedModelPtr = std::shared_ptr<ServedModel>;  // shared by the calls that read it
  class Reading;                                        // a call that reads blocks
  struct Lookup {
    ServedModelPtr shared;
    std::optional<WeightCache::Snapshot> snapshot;  // of the cache's blocks; none: a shared file

    // With `may_fetch`, missing blocks, too.
    absl::StatusOr<std::vector<uint32_t>> RequestedBlocks(const wire::BlocksRequest& request,
                                                          bool may_fetch) const;
    std::string HashOf(uint32_t block) const;  // "": not known
  };

  // Answers for a file that is shared already and has not changed, without reading it: its disk may
  // be slow, and a model that lost a stage waits for the response. False: not shared, or changed.
  bool ShareAgain(const std::string& path, wire::ShareModelResponse* response);
  absl::StatusOr<Lookup> Find(const std::string& model_id);
  absl::StatusOr<Lookup> FindCached(const std::string& model_id);
  // kResourceExhausted: too many concurrent reads.
  absl::StatusOr<std::unique_ptr<Reading>> BeginReading(const wire::BlocksRequest& request,
                                                        bool may_fetch);
  absl::Status Describe(const std::string& model_id, grpc::ServerWriter<wire::ModelPiece>* writer);
  absl::Status Hash(grpc::ServerContext* context, const wire::BlocksRequest& request,
                    grpc::ServerWriter<wire::BlockHashes>* writer);
  absl::Status Read(const wire::BlocksRequest& request,
                    grpc::ServerWriter<wire::BlockChunk>* writer);
  // Reads a block in chunks; `on_chunk` returns whether to continue. The last chunk has the hash.
  absl::Status ReadBlock(const Lookup& found, uint32_t block,
                         const std::function<bool(wire::BlockChunk)>& on_chunk);
  // The same for a block that is on the server.
  absl::Status RelayBlock(WeightSource* server, const Lookup& found, uint32_t block,
                          const std::function<bool(wire::BlockChunk)>& on_chunk);
  void SaveHashes(ServedModel* shared);

  const std::string hashes_folder_;
  const std::shared_ptr<WeightCache> cache_;
  const ServerOf server_of_;
  std::atomic<int> reads_{0};
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> bytes_hashed_{0};

  absl::Mutex saving_mu_;   // one file of hashes at a time; acquired before the others
  mutable absl::Mutex mu_;  // not held during disk access
  std::list<ServedModelPtr> shared_ ABSL_GUARDED_BY(mu_);  // shared last: first
  std::list<ServedModelPtr> cached_ ABSL_GUARDED_BY(mu_);  // opened last: first
};

}  // namespace strata
