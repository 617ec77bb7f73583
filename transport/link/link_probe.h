// How good the way to another node is: round trips of 16 KiB, which is what one token's activations
// take, and bytes per second, which prompts and weights take. Over gRPC, secured as links are: a
// pair that goes over UCX may be faster.
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
// Measurements that one node answers at the same time; more would measure each other.
inline constexpr int kEchoStreamsMax = 4;

// Answers measurements; for the grpc::ServerBuilder of a node. Outlives its server. Thread-safe.
std::unique_ptr<grpc::Service> MakeLinkProbeService();

struct MeasureLinkOptions {
  std::string address;  // host:port of the other node
  absl::Duration round_trip_budget = absl::Milliseconds(200);
  absl::Duration throughput_budget = absl::Milliseconds(200);
  absl::Duration timeout = absl::Seconds(3);  // of everything
};

// Blocks. `may_go` is asked before each frame, on this thread; when it says false (because somebody
// wants the machines for generating) the measurement ends early with what it has. kUnavailable,
// kDeadlineExceeded: nobody answers; kResourceExhausted: too many measure there; kAborted: it was
// stopped before there was anything.
absl::StatusOr<wire::LinkSpeed> MeasureLink(const MeasureLinkOptions& options,
                                            absl::FunctionRef<bool()> may_go);

}  // namespace strata
