// Converts a generation's events to and from the messages of wire.Coordinator.Generate.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "coordinator/generation/generation_call.h"
#include "grpcpp/support/status.h"
#include "proto/coordinator.pb.h"

namespace strata {

wire::GenerateEvent StartedToWire(const std::vector<int32_t>& prompt);
wire::GenerateEvent ProgressToWire(const PromptProgress& progress);
PromptProgress ProgressFromWire(const wire::GenerationProgress& progress);
wire::GenerateEvent EndedToWire(FinishReason reason, const GenerationUsage& usage);

// The content of `ended`; the reader counts the tokens itself.
struct GenerationResult {
  FinishReason reason = FinishReason::kCancelled;
  GenerationUsage usage;
};
GenerationResult EndedFromWire(const wire::GenerationEnded& ended);

// As ToGrpc() and FromGrpc(), with the status's payloads for the client: RetryAfterMs(), what is
// wrong with which parameter. gRPC's own messages about a connection become messages for people
// (kUnavailable).
grpc::Status RequestStatusToGrpc(const absl::Status& status);
absl::Status RequestStatusFromGrpc(const grpc::Status& status);

}  // namespace strata
