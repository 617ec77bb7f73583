// A model's files on a web server, which has all blocks: they are read by byte ranges, each range
// of neighbours by one request. It sends no hashes: what arrives is trusted, and its hash is the
// block's from then on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/node.pb.h"
#include "shard/model/model_file.h"
#include "shard/weights/weight_source.h"
#include "transport/http/ranged_file.h"

namespace strata {

// Parts of a model that a node takes from a server.
inline constexpr int kRemotePartsMax = 1000;

// Connections that are kept for later reads.
inline constexpr size_t kIdleConnectionsMax = 8;

// This node's token for the host of a URL; empty: none. Any thread.
using TokenOf = std::function<std::string(const std::string& url)>;

// Methods besides those of WeightSource are for one thread.
class WebWeightSource final : public WeightSource {
 public:
  // `model_id` empty: not known yet. Null `token_of`: there are no tokens.
  WebWeightSource(std::string model_id, const wire::RemoteModel& remote, const TokenOf& token_of);
  ~WebWeightSource() override;

  // OK, or what is wrong with the description, which comes from other nodes.
  static absl::Status Check(const wire::RemoteModel& remote);

  const std::string& address() const override { return address_; }
  absl::Status Connect() override { return absl::OkStatus(); }
  void Cancel() override;
  absl::Status Describe(WeightCache* cache) override { return AddTo(cache).status(); }
  absl::StatusOr<std::vector<bool>> List(size_t n_blocks) override {
    return std::vector<bool>(n_blocks, true);
  }
  absl::Status Hash(const std::vector<uint32_t>&, bool, OnHash) override {
    return absl::OkStatus();
  }
  bool sends_hashes() const override { return false; }
  absl::Status Read(const WeightBlocks& all, const std::vector<uint32_t>& blocks,
                    OnChunk on_chunk) override;

  // Reads the headers, and the samples that the model's id is the hash of. Adds the model to the
  // cache and returns its id. kFailedPrecondition: it is not the model of that id.
  absl::StatusOr<std::string> AddTo(WeightCache* cache);

 private:
  class Headers;  // sparse copies of the files, in a folder

  // A connection of its own for the time of a call.
  std::unique_ptr<WebGetter> TakeGetter();
  void GiveBack(std::unique_ptr<WebGetter> getter);
  absl::Status ReadRange(WebGetter* http, size_t part, uint64_t begin, uint64_t end,
                         WebGetter::Piece piece);
  bool cancelled() const;
  std::function<bool()> CancelledFunction() const;

  const std::string model_id_;
  std::string address_;                             // constant
  std::vector<std::string> names_;                  // of the files, for people; constant
  std::vector<uint64_t> part_bytes_;                // constant
  std::vector<std::unique_ptr<RangedFile>> files_;  // constant

  mutable absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::unique_ptr<WebGetter>> idle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
