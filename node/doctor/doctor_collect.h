// Gathers what `strata doctor` draws its conclusions from: asks this machine, the nodes of a
// cluster, and one host that may not be seen. Blocks for some seconds; never on the loop.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "node/client/cluster_client.h"
#include "node/doctor/doctor_facts.h"

namespace strata {

// Nodes that are looked at; of more, those with the smallest ids.
inline constexpr size_t kDoctorNodesMax = 64;
// Where a node is looked for when nobody says its port.
inline constexpr uint16_t kUsualPort = 7400;

struct GatherOptions {
  ClientOptions client;
  std::string program;  // as of ExamineOptions
  std::string target;   // a node's name, id or address, or a host; empty: all nodes of the cluster
};
// What cannot be found out is in the facts. kInvalidArgument: an option.
absl::StatusOr<DoctorFacts> GatherFacts(const GatherOptions& options);

}  // namespace strata
