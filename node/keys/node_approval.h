// Gives the cluster's key to a node that waits for it, once a person has seen the same code on both
// (transport/pairing/pairing.h). Blocks.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/cluster/cluster_stub.h"
#include "transport/security/cluster_key.h"

namespace strata {

// Returns whether a person sees this code on the new node as well; called once at most.
using ConfirmCodeFn = std::function<absl::StatusOr<bool>(const std::string& code)>;

// `member` reaches a node of the cluster, which knows the nodes that wait; `node` is the name of
// one, the start of its id, or host:port; empty: the only one that waits. kNotFound: no such node
// waits; kInvalidArgument: several do; kFailedPrecondition: it has a key already; else the errors
// of PairWith().
absl::Status ApproveNode(ClusterStub* member, const std::string& node, const ClusterKey& key,
                         const ConfirmCodeFn& confirm);

}  // namespace strata
