// `strata nodes`: the nodes of the cluster, as one of them sees it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "node/client/cluster_client.h"
#include "proto/cluster.pb.h"

namespace strata {

struct NodesOptions {
  ClientOptions client;
  bool json = false;
};

// Prints to stdout. Blocks. kUnavailable: no node answers.
absl::Status RunNodes(const NodesOptions& options);

// A table for people, or one line of JSON; each ends with a line's end.
std::string NodesTable(const wire::GetClusterResponse& cluster);
std::string NodesJson(const wire::GetClusterResponse& cluster);

}  // namespace strata
