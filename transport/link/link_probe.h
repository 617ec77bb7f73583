// Measures the network path to another node: round trips of 16 KiB, the size of one token's
// activations, and bytes per second, which count for prompts and weights. Over gRPC, secured as
// links are: a pair of nodes that uses UCX may be faster.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/probe.pb.h"

namespace grpc {
class Service;
}

namespace strata {

inline constexpr uint32_t kEchoFrameBytesMax = 1 << 20;
// Measurements that one node answers at the same time; more would disturb each other.
inline constexpr int kEchoStreamsMax = 4;

// The answering side, for a node's grpc::ServerBuilder. Must outlive the server. Thread-safe.
std::unique_ptr<grpc::Service> MakeLinkProbeService();

struct MeasureLinkOptions {
  std::string address;  // host:port of the other node
  absl::Duration round_trip_budget = absl::Milliseconds(200);
  absl::Duration throughput_budget = absl::Milliseconds(200);
  absl::Duration timeout = absl::Seconds(3);  // of the whole call
};

// Blocks. `may_go` is called before each frame, on this thread; when it returns false (because a
// request needs the machines) the measurement ends early with its results so far. kUnavailable,
// kDeadlineExceeded: no answer; kResourceExhausted: too many measurements there; kAborted: stopped
// before there was any result.
absl::StatusOr<wire::LinkSpeed> MeasureLink(const MeasureLinkOptions& options,
                                            absl::FunctionRef<bool()> may_go);

}  // namespace strata
