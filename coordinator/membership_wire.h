// Heartbeats to protobuf and back. Nothing that comes from a peer is trusted: lengths are bounded
// here, meanings are checked by Membership. Any thread.
#pragma once

#include "absl/status/statusor.h"
#include "coordinator/membership_types.h"
#include "proto/cluster.pb.h"

namespace strata {

inline constexpr int kWireNodesMax = 4096;     // ids or records in one list
inline constexpr int kWireAddressesMax = 64;   // of a node
inline constexpr size_t kWireStringMax = 256;  // of a name, a version or an address

wire::Heartbeat ToWire(const Heartbeat& heartbeat);
wire::Epoch ToWire(const ClusterEpoch& epoch);

// kInvalidArgument names what is too long or no id.
absl::StatusOr<Heartbeat> FromWire(const wire::Heartbeat& wire);
absl::StatusOr<ClusterEpoch> FromWire(const wire::Epoch& wire);

}  // namespace strata
