// Where a model's weights are while no node that answers has its file: in the caches of the nodes,
// which keep the weights that they have fetched.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/generation/node_client.h"
#include "proto/weights.pb.h"
#include "shard/model/architecture.h"
#include "shard/model/model_file.h"
#include "shard/model/slice.h"

namespace strata {

class WeightLocator {
 public:
  // Queries the nodes, all at the same time; null ones have nothing. They outlive this. Blocks for
  // 5 s at most.
  WeightLocator(absl::Span<NodeClient* const> nodes, const std::string& model_id);

  // All nodes that have something of the model.
  std::vector<NodeClient*> nodes() const;
  // Names of the nodes that did not report their caches.
  const std::vector<std::string>& silent() const { return silent_; }

  // The nodes from which a node can fetch the weights of `layers`: first those that together have
  // all that it lacks, beginning with the one that has most. kUnavailable: no node has some of
  // them, or they are spread over more than kWeightPeersMax nodes; else as Slice::Make.
  absl::StatusOr<std::vector<NodeClient*>> HoldersOf(const std::shared_ptr<const ModelFile>& model,
                                                     LayerRange layers, const SliceOptions& options,
                                                     const NodeClient* for_node) const;

  // For each layer, the bytes of all layers before it that a node would have to fetch: [n_layer +
  // 1], exact where `cuts` allow a stage to end, and for layers between as for the last of these.
  // Errors of Slice::Make.
  absl::StatusOr<std::vector<uint64_t>> FetchBytes(const std::shared_ptr<const ModelFile>& model,
                                                   const std::vector<uint32_t>& cuts,
                                                   const SliceOptions& options,
                                                   const NodeClient* node) const;

 private:
  struct Cache {
    NodeClient* node = nullptr;
    wire::BlockList list;
  };
  std::vector<Cache> caches_;
  std::vector<std::string> silent_;
};

}  // namespace strata
