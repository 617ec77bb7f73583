// Connects the command line to a cluster, from any machine. Blocks; never on the loop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/cluster/cluster_stub.h"
#include "node/keys/node_security.h"

namespace strata {

struct ClientOptions {
  std::string node;      // host:port; empty: the one on this machine, else one that mDNS finds
  std::string data_dir;  // of the node on this machine; empty: DataDir::Default()
  KeyOptions key;        // the key to connect with
  std::string cluster;   // among those found by mDNS; empty: whichever answers first
  int64_t timeout_ms = 5'000;
  int64_t look_ms = 2'000;  // time to search by mDNS
};

// Connects to a node and checks that it answers. Secures this process by the key, if there is one.
// kUnavailable: no node is there, and what to do; kUnauthenticated: a node is there that has
// another key, or none; kInvalidArgument: an option; else FindKey()'s.
absl::StatusOr<std::unique_ptr<ClusterStub>> ConnectToCluster(const ClientOptions& options);

}  // namespace strata
