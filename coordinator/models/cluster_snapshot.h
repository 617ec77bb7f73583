// The state of a cluster as each of its nodes reports it: the input of a plan and of `strata
// status`. Blocks; never on the loop.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/generation/node_client.h"
#include "coordinator/planner/problem/plan.h"
#include "proto/cluster.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/node.pb.h"

namespace strata {

struct NodeReport {
  wire::ClusterNode seen;  // by the node that collects
  // OK: it answered itself; else the rest is empty.
  absl::Status status;
  wire::GetInfoResponse info;
  wire::GetClusterResponse sees;       // the cluster as it sees it: its links
  std::unique_ptr<NodeClient> client;  // null when it did not answer

  const std::string& name() const { return seen.record().name(); }
  const std::string& id() const { return seen.record().node_id(); }
};

struct ClusterSnapshot {
  wire::GetClusterResponse cluster;  // as the node that collects sees it
  std::vector<NodeReport> nodes;     // in the order of cluster.nodes(); perhaps not all

  // As measured from one node to the other, by indexes in `nodes`; null: not yet.
  const wire::LinkSpeed* Link(size_t from, size_t to) const;
  // Whether some node still measures its devices, or a link between nodes that answer is not
  // measured yet.
  bool measuring() const;
};

// A node's own view, which takes no call: of itself, and of the others.
struct OwnReport {
  wire::GetInfoResponse info;
  wire::GetClusterResponse cluster;
};
// The report of the node `own`, which reaches itself at `own_address` (host:port), and of all nodes
// that it knows to be alive, which are queried at the same time. Errors are in the report. If
// `only` has ids, 16 bytes each, only these nodes are queried and reported. `pause` waits for that
// long at most.
ClusterSnapshot CollectReport(OwnReport own, const std::string& own_address,
                              const std::vector<std::string>& only,
                              const std::function<void(absl::Duration)>& pause);

// The same, collected by the node at `address`, so that the caller need not reach the others; the
// reports have no clients.
absl::StatusOr<ClusterSnapshot> FetchReport(const std::string& address, int64_t timeout_ms,
                                            const std::vector<std::string>& only = {});
// The same for one node. Errors: the node's own status if it does not answer; kNotFound: it is not
// known there.
absl::StatusOr<NodeReport> FetchNode(const std::string& address, int64_t timeout_ms,
                                     const std::string& id);
wire::ClusterSnapshot ToWire(const ClusterSnapshot& report);

// Renames nodes that share a name to name-id, each with the first digits of its id.
void DisambiguateNodeNames(ClusterSnapshot* report);

// The nodes, devices and links of a PlanRequest: the members of the cluster that answer.
// `places[i]` is the index in the report of nodes[i] of the request.
struct PlanInputs {
  PlanRequest request;
  std::vector<size_t> places;
};
PlanInputs PlanInputsOf(const ClusterSnapshot& report);

}  // namespace strata
