// A text's events as wire.Coordinator.Generate carries them, there and back.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "coordinator/generation/generation_call.h"
#include "grpcpp/support/status.h"
#include "proto/coordinator.pb.h"

namespace strata {

wire::GenerateEvent StartedToWire(const std::vector<int32_t>& prompt);
wire::GenerateEvent EndedToWire(FinishReason reason, const GenerationUsage& usage);

// What `ended` says; the counts of tokens are the reader's own.
struct EndedGeneration {
  FinishReason reason = FinishReason::kCancelled;
  GenerationUsage usage;
};
EndedGeneration EndedFromWire(const wire::GenerationEnded& ended);

// As ToGrpc() and FromGrpc(), with what the status carries for who asked: RetryAfterMs(), what is
// wrong with which parameter. What gRPC says of a connection becomes words for people
// (kUnavailable).
grpc::Status TextStatusToGrpc(const absl::Status& status);
absl::Status TextStatusFromGrpc(const grpc::Status& status);

}  // namespace strata
