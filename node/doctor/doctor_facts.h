// What `strata doctor` has gathered, before anything is said about it. Plain values: tests write
// them by hand.
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
  int64_t delay_us = 0;   // of the exchange it is from: off by half of it at most
};

// One of a node's tries to reach another one.
struct WayFacts {
  size_t to = 0;      // in DoctorFacts::nodes
  bool door = false;  // a port that the system chose there, not the node's own
  wire::ReachResult result;
};

struct NodeFacts {
  wire::ClusterNode seen;  // by the node asked first, or by itself where that does not know it
  bool known = true;       // to the node asked first
  bool here = false;       // runs on this machine
  // Whether it answers this program; what is below is empty when it does not.
  absl::Status status;
  std::vector<wire::ReachResult> tries;  // of its addresses from this program
  std::string address;                   // that worked
  std::string through;  // of the node asked first, where only that one reaches it; else empty
  wire::GetInfoResponse info;
  wire::GetClusterResponse sees;
  std::optional<wire::MachineFacts> machine;  // not of the one that is here
  std::optional<ClockOffset> clock;
  uint32_t door_port = 0;    // 0: it opened none
  absl::Status ways_status;  // of asking for `ways`
  std::vector<WayFacts> ways;
  std::string sees_us_as;  // the host that this program's questions come from

  const std::string& name() const { return seen.record().name(); }
  const std::string& id() const { return seen.record().node_id(); }
};

// The machine that was asked about, where it is no node that the cluster knows.
struct HostFacts {
  std::string host;
  uint16_t port = 0;
  bool port_guessed = false;           // nobody said it
  std::vector<DiscoveryRecord> heard;  // nodes of that name or address, announced by mDNS
  absl::Status resolved;               // of looking the name up
  std::vector<std::string> ips;
  std::vector<wire::ReachResult> tries;
};

struct DoctorFacts {
  wire::Versions versions;  // of this program
  bool outside = false;     // asked to look at a cluster elsewhere, by its address
  wire::MachineFacts here;
  absl::Status mdns;                   // of listening for nodes
  std::vector<DiscoveryRecord> heard;  // by mDNS, here, of any cluster

  std::string last_address;          // of the node that runs here, or ran last; may be empty
  std::string asked_address;         // of the node asked first
  absl::Status asked;                // whether it answered
  wire::GetClusterResponse cluster;  // as it sees it
  std::vector<NodeFacts> nodes;      // it first; the others that were looked at
  std::optional<size_t> target;      // the node that was asked about, in `nodes`
  std::optional<HostFacts> host;
};

}  // namespace strata
