// The gRPC service wire.Weights: gives the weights of models that this node was told to share, and
// what its cache has of others, to the nodes that hold their stages. A request names a model by its
// id and blocks by their numbers, so nothing else on this machine can be read.
//
// Blocks of a file are hashed when they are first read for somebody; the hashes are kept in the
// node's data folder, under the file's path, size, times and inode, and go along with the blocks. A
// file that is written to while it is read is not given any further.
// By them a node that has blocks of another file with the same id (ModelFile::id() is not of all
// the data) notices it, and one that has these blocks already asks for nothing. Blocks of the cache
// are hashed whenever they are read: one that is damaged, or was dropped meanwhile, is not ended
// but refused.
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

namespace strata {

// Models shared at the same time; of more, the one told of first is forgotten.
inline constexpr size_t kSharedModelsMax = 16;
// Models of the cache whose headers are kept for those who read; of more, the first asked for goes.
inline constexpr size_t kCachedModelsMax = 4;
// Calls that read weights at the same time: a thread and a few MiB each.
inline constexpr int kWeightReadsMax = 64;
inline constexpr size_t kWeightChunkBytes = 1u << 20;
// Chunks between the disk and the network.
inline constexpr size_t kWeightChunksMax = 4;

class WeightService final : public wire::Weights::Service {
 public:
  // `hashes_folder` keeps the hashes, and is made if need be; empty: they are kept in memory.
  // `cache`, shared with the fetcher, may be null: only models that are shared are given.
  explicit WeightService(std::string hashes_folder, std::shared_ptr<WeightCache> cache = nullptr);
  ~WeightService() override;

  // ModelFile::file_key() of a shared model, by the path of its file or of any part; "": none is
  // shared by that path. Does not block.
  std::string FileKeyOf(const std::string& path) const;

  // Of blocks, since the start; for tests and statistics.
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
  struct Shared;                              // a model that others may read
  using SharedPtr = std::shared_ptr<Shared>;  // shared by the calls that read it
  class Reading;                              // a call that reads blocks
  struct Found {
    SharedPtr shared;
    std::optional<WeightCache::Kept> kept;  // it is of the cache, which has these blocks

    absl::StatusOr<std::vector<uint32_t>> Listed(const wire::BlocksRequest& request) const;
    std::string HashOf(uint32_t block) const;  // "": not known
  };

  // Answers for a file that is shared already and has not changed, without reading it: its disk may
  // be slow, and a model whose stage was lost waits for the answer. False: it is not.
  bool ShareAgain(const std::string& path, wire::ShareModelResponse* response);
  absl::StatusOr<Found> Find(const std::string& model_id);
  absl::StatusOr<Found> FindCached(const std::string& model_id);
  // kResourceExhausted: too many read already.
  absl::StatusOr<std::unique_ptr<Reading>> BeginReading(const wire::BlocksRequest& request);
  absl::Status Describe(const std::string& model_id, grpc::ServerWriter<wire::ModelPiece>* writer);
  absl::Status Hash(grpc::ServerContext* context, const wire::BlocksRequest& request,
                    grpc::ServerWriter<wire::BlockHashes>* writer);
  absl::Status Read(const wire::BlocksRequest& request,
                    grpc::ServerWriter<wire::BlockChunk>* writer);
  // Reads a block in chunks; `chunk` says whether to go on. The hash comes with the last chunk.
  absl::Status ReadBlock(const Found& found, uint32_t block,
                         const std::function<bool(wire::BlockChunk)>& chunk);
  void KeepHashes(Shared* shared);

  const std::string hashes_folder_;
  const std::shared_ptr<WeightCache> cache_;
  std::atomic<int> reads_{0};
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> bytes_hashed_{0};

  absl::Mutex saving_mu_;   // one file of hashes at a time; before the others
  mutable absl::Mutex mu_;  // not held while the disk is waited for
  std::list<SharedPtr> shared_ ABSL_GUARDED_BY(mu_);  // told of last: first
  std::list<SharedPtr> cached_ ABSL_GUARDED_BY(mu_);  // opened last: first
};

}  // namespace strata
