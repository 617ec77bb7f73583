// Converts heartbeats to protobuf and back. Peers are not trusted: lengths are bounded here,
// meanings are checked by Membership. Any thread.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/membership/membership_types.h"
#include "proto/cluster.pb.h"

namespace strata {

inline constexpr int kWireNodesMax = 4096;     // ids or records in one list
inline constexpr int kWireAddressesMax = 64;   // of a node
inline constexpr size_t kWireStringMax = 256;  // of a name, a version or an address

// 16 bytes; empty for nobody.
std::string IdBytes(const NodeId& id);
// Nobody unless `bytes` are 16.
NodeId IdOf(absl::string_view bytes);

wire::Heartbeat ToWire(const Heartbeat& heartbeat);
// An address from discovery may be any bytes: it is made valid UTF-8.
wire::NodeRecord ToWire(const NodeRecord& record);
wire::Epoch ToWire(const ClusterEpoch& epoch);
wire::OtherProcess ToWire(const OtherProcess& other);

// kInvalidArgument names the field that is too long or not an id.
absl::StatusOr<Heartbeat> FromWire(const wire::Heartbeat& wire);
absl::StatusOr<ClusterEpoch> FromWire(const wire::Epoch& wire);
// Of the fields of `wire` that have it.
absl::StatusOr<DesiredState> DesiredFromWire(const wire::HeartbeatDetails& wire);
void SetDesired(const DesiredState& desired, wire::HeartbeatDetails* wire);
// An address that is too long is left out, and times are bounded.
OtherProcess FromWire(const wire::OtherProcess& wire);

}  // namespace strata
