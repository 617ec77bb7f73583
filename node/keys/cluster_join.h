// How a node without a key joins: it looks for a cluster, and founds one if there is none, or waits
// until a member of the existing one admits it (transport/pairing/pairing.h; `strata approve`). Two
// nodes that begin at the same time end in one cluster: the node with the lower id founds it, the
// other waits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/base/peer_addresses.h"
#include "transport/discovery/discovery.h"
#include "transport/security/cluster_key.h"

namespace strata {

struct ClusterJoinOptions {
  DiscoveryRecord self;  // its id, name, cluster and protocol
  HostPort listen;       // for the member that admits it; port 0: any
  bool mdns = true;
  std::vector<std::string> peers;  // where nodes may be; if any is given it founds no cluster
  std::string key_path;            // where the key is stored; empty: nowhere
  int64_t look_ms = 2'000;         // how long it looks for a cluster before it founds one
  bool stop_with_parent = false;   // give up when stdin ends
};

// Blocks until there is a key, or SIGINT, SIGTERM or SIGHUP; prints to stderr what it waits for.
// kCancelled: it was stopped before; kUnavailable: cannot listen; kUnauthenticated: the nodes here
// have no key (--open); else the errors of CreateKeyFile().
absl::StatusOr<ClusterKey> AwaitKey(const ClusterJoinOptions& options);

}  // namespace strata
