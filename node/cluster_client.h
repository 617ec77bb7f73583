// A person's or script's hand on a cluster, from any machine: finds a node and asks it. Blocks;
// never on the loop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "node/node_security.h"
#include "proto/cluster.pb.h"

namespace strata {

class ClusterClient {
 public:
  struct Options {
    std::string node;      // host:port; empty: the one on this machine, else one that mDNS finds
    std::string data_dir;  // of the node on this machine; empty: DataDir::Default()
    KeyOptions key;        // with which to ask
    std::string cluster;   // among those found by mDNS; empty: whichever answers first
    int64_t timeout_ms = 5'000;
    int64_t look_ms = 2'000;  // for mDNS
  };
  // Secures this process by the key, if there is one. kUnavailable: nobody is there, and what to
  // do; kUnauthenticated: a node is there that has another key, or none; kInvalidArgument: an
  // option; else FindKey()'s.
  static absl::StatusOr<std::unique_ptr<ClusterClient>> Connect(const Options& options);
  // The node at an address that a cluster told: does not ask it anything yet.
  static std::unique_ptr<ClusterClient> At(const std::string& address, int64_t timeout_ms);
  virtual ~ClusterClient() = default;

  // Of the node that answers, as it was dialled.
  virtual const std::string& address() const = 0;

  // Errors carry the address.
  virtual absl::StatusOr<wire::GetClusterResponse> GetCluster() = 0;
  // For a new plan. kFailedPrecondition unless the node that answers coordinates.
  virtual absl::StatusOr<wire::Epoch> NextEpoch() = 0;
};

}  // namespace strata
