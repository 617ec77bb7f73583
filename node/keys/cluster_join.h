// A node without a key before it is a node: it looks for a cluster, and founds one where there is
// none, or waits until a member of the one there is admits it (transport/pairing/pairing.h; `strata
// approve`). Two that begin at the same time end as one cluster: the one with the lower id founds
// it, the other waits.
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
  HostPort listen;       // for whoever admits it; port 0: any
  bool mdns = true;
  std::vector<std::string> peers;  // where nodes may be; with any of them it founds no cluster
  std::string key_path;            // where the key goes; empty: it is not kept
  int64_t look_ms = 2'000;         // for a cluster, before it founds one
  bool stop_with_parent = false;   // give up when stdin ends
};

// Blocks until there is a key, or SIGINT, SIGTERM or SIGHUP; says on stderr what it waits for.
// kCancelled: it was stopped before; kUnavailable: cannot listen; kUnauthenticated: the nodes here
// have no key (--open); else CreateKeyFile()'s.
absl::StatusOr<ClusterKey> AwaitKey(const ClusterJoinOptions& options);

}  // namespace strata
