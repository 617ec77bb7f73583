// Collects the facts for `strata doctor`: examines this machine, the nodes of a cluster, and one
// host that may be unreachable. Blocks for some seconds; never on the loop.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "node/client/cluster_client.h"
#include "node/doctor/doctor_facts.h"

namespace strata {

// Nodes that are examined; if there are more, those with the smallest ids.
inline constexpr size_t kDoctorNodesMax = 64;
// The port at which a node is tried if the user gives none.
inline constexpr uint16_t kDefaultPort = 7400;

struct CollectOptions {
  ClientOptions client;
  std::string program;  // as of ExamineOptions
  std::string target;   // a node's name, id or address, or a host; empty: all nodes of the cluster
};
// Errors are part of the facts. kInvalidArgument: an option.
absl::StatusOr<DoctorFacts> CollectFacts(const CollectOptions& options);

}  // namespace strata
