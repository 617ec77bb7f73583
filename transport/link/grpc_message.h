// Frames as messages of a gRPC call (grpc_link.cc), and back. A frame's first message has its
// prefix, its header and the first piece of its payload, each further message one more piece. No
// thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "transport/link/frame.h"

namespace strata {

// The last piece has what is left. gRPC's pings wait for what is being sent, and its window is at
// least a message: on a network that took seconds for one, its keepalive would find the peer dead.
inline constexpr uint64_t kGrpcPieceBytes = 256u << 10;

// A frame on its way out.
class GrpcOutgoing {
 public:
  GrpcOutgoing() = default;  // has nothing to send
  explicit GrpcOutgoing(Frame frame);

  // The next message, whose bytes go with their owner: nothing is copied. False when that was all.
  bool Next(grpc::ByteBuffer* message);

 private:
  // Until they were sent.
  std::optional<grpc::Slice> front_;
  grpc::Slice payload_;
};

// A frame on its way in, from a stranger.
class GrpcIncoming {
 public:
  // The frame, once it is whole; nothing before. kInvalidArgument when `message` is not the one
  // that must come next; the next one then begins a frame.
  absl::StatusOr<std::optional<Frame>> Take(const grpc::ByteBuffer& message);

 private:
  // Of a frame that has begun, else null; shared with its payload.
  std::shared_ptr<std::vector<grpc::Slice>> slices_;
  uint64_t rest_ = 0;  // still to come of the payload
};

}  // namespace strata
