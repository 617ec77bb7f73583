// A text's events as wire.Coordinator.GenerateText carries them, there and back.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "coordinator/generation/text_call.h"
#include "grpcpp/support/status.h"
#include "proto/coordinator.pb.h"

namespace strata {

wire::GenerateTextEvent StartedToWire(const std::vector<int32_t>& prompt);
wire::GenerateTextEvent EndedToWire(FinishReason reason, const TextUsage& usage);

// What `ended` says; the counts of tokens are the reader's own.
struct EndedText {
  FinishReason reason = FinishReason::kCancelled;
  TextUsage usage;
};
EndedText EndedFromWire(const wire::TextEnded& ended);

// As ToGrpc() and FromGrpc(), with what the status carries for who asked: RetryAfterMs(), what is
// wrong with which parameter. What gRPC says of a connection becomes words for people
// (kUnavailable).
grpc::Status TextStatusToGrpc(const absl::Status& status);
absl::Status TextStatusFromGrpc(const grpc::Status& status);

}  // namespace strata
