// The facts that `strata doctor` has collected, without conclusions. Plain values: tests write them
// by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/cluster.pb.h"
#include "proto/doctor.pb.h"
#include "proto/node.pb.h"
#include "transport/discovery/discovery.h"

namespace strata {

// A node's clock against this machine's (RFC 5905, section 8).
struct ClockOffset {
  int64_t offset_us = 0;  // positive: the node's is ahead
  int64_t delay_us = 0;   // of the exchange; the offset is wrong by half of it at most
};

// One of a node's tries to reach another one.
struct LinkFacts {
  size_t to = 0;      // in DoctorFacts::nodes
  bool door = false;  // a port that the system chose there, not the node's own
  wire::ReachResult result;
};

struct NodeFacts {
  wire::ClusterNode seen;  // by the first node, or by itself if the first does not know it
  bool known = true;       // to the first node, the one that was called
  bool here = false;       // runs on this machine
  // Of its answer to this program; the fields below are empty if it does not answer.
  absl::Status status;
  std::vector<wire::ReachResult> tries;  // of its addresses from this program
  std::string address;                   // that worked
  std::string through;  // the first node's address, if only that node reaches it; else empty
  wire::GetInfoResponse info;
  wire::GetClusterResponse sees;
  std::optional<wire::MachineFacts> machine;  // not for the node that is here
  std::optional<ClockOffset> clock;
  uint32_t door_port = 0;     // 0: it opened none
  absl::Status links_status;  // of the call for `links`
  std::vector<LinkFacts> links;
  std::string sees_us_as;  // the host from which this program's calls come

  const std::string& name() const { return seen.record().name(); }
  const std::string& id() const { return seen.record().node_id(); }
};

// The machine that the user named, if the cluster does not know it as a node.
struct HostFacts {
  std::string host;
  uint16_t port = 0;
  bool port_guessed = false;           // the user gave none
  std::vector<DiscoveryRecord> heard;  // nodes of that name or address, announced by mDNS
  absl::Status resolved;               // of looking the name up
  std::vector<std::string> ips;
  std::vector<wire::ReachResult> tries;
};

struct DoctorFacts {
  wire::Versions versions;  // of this program
  bool outside = false;     // examines a cluster elsewhere, by its address
  wire::MachineFacts here;
  absl::Status mdns;                   // of listening for nodes
  std::vector<DiscoveryRecord> heard;  // by mDNS, here, of any cluster

  std::string last_address;          // of the node that runs here, or ran last; may be empty
  std::string first_address;         // of the first node
  absl::Status cluster_status;       // of its answer
  wire::GetClusterResponse cluster;  // as it sees it
  std::vector<NodeFacts> nodes;      // that node first, then the others that were examined
  std::optional<size_t> target;      // index in `nodes` of the node that the user named
  std::optional<HostFacts> host;
};

}  // namespace strata
