// `strata measure`: nodes measure their devices and links again, after a change that they cannot
// notice: another driver, a new heat sink, a better cable.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "node/client/cluster_client.h"
#include "proto/cluster.pb.h"
#include "proto/node.pb.h"

namespace strata {

struct MeasureOptions {
  ClientOptions client;
  std::vector<std::string> nodes;  // names or ids; empty: all that are alive
  bool json = false;
};

// Calls all nodes through the one that `client` finds: the others need not be reachable from here.
// Waits until all have measured; prints progress to stderr and the changes to stdout. Blocks.
// kUnavailable: no node answers; kNotFound: a node's name; else the status of the first node that
// did not measure, after the others did.
absl::Status RunMeasure(const MeasureOptions& options);

// A node's report of its devices and links, before and after.
struct MeasuredNode {
  std::string id;  // 16 bytes
  std::string name;
  absl::Status status;
  wire::GetInfoResponse info_before, info_after;
  wire::GetClusterResponse sees_before, sees_after;
};

// The indexes of the named nodes, each once, in their order in `cluster`. A node is named by its
// name, or by the first digits of its id, 8 or more. kNotFound: no such node, or several.
absl::StatusOr<std::vector<int>> FindNodes(const wire::GetClusterResponse& cluster,
                                           absl::Span<const std::string> names);

// The node's current measurement, for people; empty: it is done.
std::string MeasuringText(const wire::GetInfoResponse& info);

// For people, or one line of JSON; each ends with a line's end.
std::string MeasurementsText(absl::Span<const MeasuredNode> nodes);
std::string MeasurementsJson(absl::Span<const MeasuredNode> nodes);

}  // namespace strata
