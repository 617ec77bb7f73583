// The types of membership: ids, records, heartbeats and the view of a node. Plain values, so that a
// simulator can pass thousands of them a second; membership_wire.h converts them to protobuf and
// back. Not bound to a thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/base/printable_text.h"

namespace strata {

// The bounds of the desired state; more is refused.
inline constexpr size_t kDesiredStatesMax = 16;
inline constexpr size_t kDesiredStateBytesMax = 72 * 1024;  // each; with a chat template

// 128 bits; all zero is nobody.
struct NodeId {
  uint64_t high = 0;
  uint64_t low = 0;

  // kInvalidArgument unless `hex` is 32 hex digits and not all zero.
  static absl::StatusOr<NodeId> FromHex(absl::string_view hex);
  std::string ToHex() const;

  bool is_nobody() const { return high == 0 && low == 0; }
  friend auto operator<=>(const NodeId&, const NodeId&) = default;
};

// Compared as a pair. Counter 0: none claimed yet.
struct ClusterEpoch {
  uint64_t counter = 0;
  NodeId coordinator;

  friend auto operator<=>(const ClusterEpoch&, const ClusterEpoch&) = default;
};

// Orders desired states: the greater one is the newer. It is not the present coordinator's epoch
// that counts, but that of the one that made the change.
struct DesiredVersion {
  ClusterEpoch epoch;   // of the coordinator that changed it; counter 0: nobody ever did
  uint64_t change = 0;  // of the changes in that epoch

  friend auto operator<=>(const DesiredVersion&, const DesiredVersion&) = default;
};

// The models that are to stay loaded.
struct DesiredState {
  DesiredVersion version;
  std::vector<std::string> models;  // serialized wire::LoadModelRequest

  // Two groups cannot make the same version; if they do, all nodes still agree on one.
  friend auto operator<=>(const DesiredState&, const DesiredState&) = default;
};
using DesiredStatePtr = std::shared_ptr<const DesiredState>;  // shared with heartbeats and the disk
inline DesiredStatePtr NoDesiredState() {
  static const auto* const kNone = new DesiredStatePtr(std::make_shared<const DesiredState>());
  return *kNone;
}

// A node's own description.
struct NodeRecord {
  NodeId id;
  // Greater at each start of the node: take the wall clock in microseconds. If that went back, the
  // peers' memory of the earlier start is noticed and outdone. 0: not known yet.
  uint64_t boot = 0;
  uint32_t revision = 0;  // greater at each change within a boot
  PrintableText name;     // for people
  PrintableText cluster;
  uint32_t protocol = 0;               // kProtocolVersion of transport/base/version.h
  PrintableText strata, llama, ggml;   // versions of the program and its libraries
  std::vector<std::string> addresses;  // host:port, any of which may work
  // Random at each start of the process, which distinguishes two with one id. 0: not known.
  uint64_t nonce = 0;
};

// No process runs for longer.
inline constexpr int64_t kRunningUsMax = int64_t{1} << 60;

// Another process with the id of the receiver of the report; fields as in proto/cluster.proto.
struct OtherProcess {
  uint64_t nonce = 0;
  int64_t running_us = 0;
  bool placed = false;
  std::string address;
};

// The part of a heartbeat that changes seldom; fields as in proto/cluster.proto.
struct HeartbeatDetails {
  std::shared_ptr<const NodeRecord> record;  // never null
  std::vector<NodeId> reaches;
  std::vector<NodeId> members;
  // Never null. Of a member whose coordinator has it, or a newer one: the version that its disk
  // has, and no models.
  DesiredStatePtr desired = NoDesiredState();
};

// The part of a heartbeat that is the same for all receivers; fields as in proto/cluster.proto.
struct HeartbeatBody {
  uint32_t protocol = 0;
  std::shared_ptr<const std::string> cluster;  // never null
  NodeId from;
  uint64_t boot = 0;
  uint64_t nonce = 0;
  int64_t started_us = 0;
  bool leaving = false;
  bool placed = false;
  bool contested = false;
  bool calm = false;

  ClusterEpoch epoch;
  NodeId obeys;
  NodeId wants;
  ClusterEpoch floor;
  uint32_t live_requests = 0;
  uint32_t group_requests = 0;
  uint32_t group_size = 0;
  uint32_t seniority = 0;
  uint64_t details_version = 0;

  friend bool operator==(const HeartbeatBody&, const HeartbeatBody&) = default;
};

// Fields as in proto/cluster.proto.
struct Heartbeat {
  // Shared by the sender's heartbeats until it changes; never null.
  std::shared_ptr<const HeartbeatBody> body;
  std::shared_ptr<const HeartbeatDetails> details;       // null: the receiver has this version
  std::vector<std::shared_ptr<const NodeRecord>> known;  // none null

  NodeId to;
  NodeId next;
  uint64_t your_boot = 0;
  uint64_t your_nonce = 0;
  int64_t your_newest_us = 0;
  int64_t sent_us = 0;
  int64_t answers_us = 0;
  int64_t granted_us = 0;
  uint64_t your_details_version = 0;
  bool offer = false;
  bool release = false;
  bool welcome = false;
  bool refused = false;
  std::shared_ptr<const OtherProcess> other;  // null: none is known of
};

// The sender, as it is reported to others. A sender that is leaving contests nothing.
OtherProcess OtherProcessOf(const Heartbeat& message);

struct OutgoingHeartbeat {
  NodeId to;
  Heartbeat message;
};

// The cluster as one node sees it.
struct ClusterView {
  enum class State {
    kUnheard,       // reported by another node; it has not answered yet
    kAlive,         // heard lately
    kSuspected,     // silent for suspect_after_ms
    kGone,          // silent for gone_after_ms, said good-bye, or its process has ended
    kOtherVersion,  // speaks another protocol; not used
  };
  struct Node {
    NodeRecord record;  // addresses: its own first, then those from discovery
    State state = State::kUnheard;
    int64_t since_us = 0;  // since when it is heard; 0: never
    int64_t last_heard_us = 0;
    bool ended = false;      // gone: it left, or its machine refuses connections
    bool reachable = false;  // each of us answers the other's requests
    bool member = false;     // of this node's group
    NodeId obeys;            // as it last reported
    uint32_t live_requests = 0;
  };

  // Two processes with one id.
  struct SharedId {
    NodeId id;
    std::string taken_address;  // may be empty, as the other
    std::string refused_address;
    int64_t since_us = 0;
    bool this_is_refused = false;
  };

  std::vector<Node> nodes;      // in order of id, this node among them
  std::vector<NodeId> members;  // of this node's group, in order, as its coordinator reports
  NodeId coordinator;           // that this node obeys; nobody while it is between two
  ClusterEpoch epoch;           // of that coordinator; counter 0: none claimed yet
  bool is_coordinator = false;
  // A coordinator for a while, or of all live nodes, and not about to join another: ready to plan.
  bool settled = false;
  // Another process has this node's id and its place: this one obeys no coordinator and has no
  // members.
  bool refused = false;
  std::vector<SharedId> shared_ids;  // at most one a node; this node's own first

  const Node* Find(const NodeId& id) const;
};

const char* StateName(ClusterView::State state);  // "alive", "suspected", …

}  // namespace strata
