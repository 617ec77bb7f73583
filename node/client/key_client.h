// Changes of the cluster's key by one of its nodes (node/rpc/key_service.h). Block, in a process
// that is secured (node/keys/node_security.h).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "node/client/coordinator_client.h"
#include "proto/key.pb.h"

namespace strata {

// Gives a new key to all nodes but `remove` (an id, 16 bytes; empty: to all), by the node at
// `address`. kFailedPrecondition: the nodes are open; kAborted: another change of the key is in
// progress; else the error of a node: then nothing has changed.
absl::StatusOr<wire::ChangeKeyResponse> ChangeClusterKey(const std::string& address,
                                                         const std::string& remove);

struct NodeRemoval {
  std::string address;  // host:port of a node that stays
  std::string node;     // to remove: its name, or the start of its id
  bool now = false;     // without waiting until its layers are on other nodes
};
struct RemovedNode {
  std::string name;
  wire::ChangeKeyResponse key;
};
// Moves all layers off the node, if it is alive, and gives a new key to the others. `client` is one
// of the node at `address`. kNotFound: no such node; kInvalidArgument: several, or the node at
// `address`; else errors of DrainNode() and ChangeClusterKey().
absl::StatusOr<RemovedNode> RemoveNode(CoordinatorClient* client, const NodeRemoval& removal,
                                       CoordinatorClient::Note note);

}  // namespace strata
