// All that a cluster's nodes know, asked of each of them: what a plan is made from and what
// `strata status` shows. Blocks; never on the loop.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/generation/node_client.h"
#include "coordinator/planner/plan.h"
#include "proto/cluster.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/node.pb.h"

namespace strata {

struct NodeReport {
  wire::ClusterNode seen;  // by the node that was asked first
  // Whether it answered for itself; the rest is empty when it did not.
  absl::Status status;
  wire::GetInfoResponse info;
  wire::GetClusterResponse sees;       // the cluster from its side: its links
  std::unique_ptr<NodeClient> client;  // null when it did not answer

  const std::string& name() const { return seen.record().name(); }
  const std::string& id() const { return seen.record().node_id(); }
};

struct ClusterSnapshot {
  wire::GetClusterResponse cluster;  // as the node that was asked first sees it
  std::vector<NodeReport> nodes;     // in the order of cluster.nodes(); maybe not all

  // As measured from one to the other, by places in `nodes`; null: not yet.
  const wire::LinkSpeed* Link(size_t from, size_t to) const;
  // Whether some node still measures its devices, or one of the ways between nodes that answer is
  // not measured yet.
  bool measuring() const;
};

// Asks the node at `first`, host:port, then all nodes it knows to be there, at the same time.
// Errors of the first alone; those of others are in the report. `only` these ids, 16 bytes each,
// are asked and in it, if there are any.
absl::StatusOr<ClusterSnapshot> CollectReport(const std::string& first,
                                              const std::vector<std::string>& only = {});

// The same, collected by the node at `address`, so that no other needs to be reached from here; the
// reports have no clients.
absl::StatusOr<ClusterSnapshot> FetchReport(const std::string& address, int64_t timeout_ms,
                                            const std::vector<std::string>& only = {});
// The same of one node: its status where it does not answer. kNotFound: it is not known there.
absl::StatusOr<NodeReport> FetchNode(const std::string& address, int64_t timeout_ms,
                                     const std::string& id);
wire::ClusterSnapshot ToWire(const ClusterSnapshot& report);

// Nodes of one name are called name-id from here on, each with the first digits of its id.
void DisambiguateNodeNames(ClusterSnapshot* report);

// The nodes, devices and links of a PlanRequest: the members of the cluster that answer.
// `places[i]` is where nodes[i] of the request is in the report.
struct PlanInputs {
  PlanRequest request;
  std::vector<size_t> places;
};
PlanInputs PlanInputsOf(const ClusterSnapshot& report);

}  // namespace strata
