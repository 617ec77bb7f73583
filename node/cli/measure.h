// `strata measure`: nodes measure their devices and links again, because something changed that
// they cannot notice: another driver, a new heat sink, a better cable.
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

// All are asked through the node that `client` finds: the others need not be reached from here.
// Waits until all have measured; says on stderr what they do and on stdout what changed. Blocks.
// kUnavailable: nobody is there; kNotFound: a node's name; else the status of the first node that
// did not measure, after the others did.
absl::Status RunMeasure(const MeasureOptions& options);

// What a node told of itself and of its ways, before and after.
struct Remeasured {
  std::string id;  // 16 bytes
  std::string name;
  absl::Status status;
  wire::GetInfoResponse info_before, info_after;
  wire::GetClusterResponse sees_before, sees_after;
};

// The places of the nodes that are meant, each once, in their order in `cluster`. A node is named
// by its name, or by the first digits of its id, 8 or more. kNotFound: no such node, or several.
absl::StatusOr<std::vector<int>> FindNodes(const wire::GetClusterResponse& cluster,
                                           absl::Span<const std::string> names);

// What a node does meanwhile, for people; empty: it is done.
std::string MeasuringText(const wire::GetInfoResponse& info);

// For people, or one line of JSON; each ends with a line's end.
std::string RemeasuredText(absl::Span<const Remeasured> nodes);
std::string RemeasuredJson(absl::Span<const Remeasured> nodes);

}  // namespace strata
