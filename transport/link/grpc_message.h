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

// Only the last piece is smaller. gRPC's pings wait for the message being sent, and its window is
// at least a message: on a network that took seconds for a message, its keepalive would take the
// peer for dead.
inline constexpr uint64_t kGrpcPieceBytes = 256u << 10;

// A frame being sent.
class GrpcOutgoing {
 public:
  GrpcOutgoing() = default;  // has nothing to send
  explicit GrpcOutgoing(Frame frame);

  // The next message, which shares its bytes with their owner: nothing is copied. False at the end.
  bool Next(grpc::ByteBuffer* message);

 private:
  // The bytes that are not sent yet.
  std::optional<grpc::Slice> front_;
  grpc::Slice payload_;
};

// A frame being received, from an untrusted peer.
class GrpcIncoming {
 public:
  // The frame, once it is complete; nothing before. kInvalidArgument when `message` cannot come
  // next; the next message then begins a frame.
  absl::StatusOr<std::optional<Frame>> Take(const grpc::ByteBuffer& message);

 private:
  // The slices of the frame in progress, else null; shared with its payload.
  std::shared_ptr<std::vector<grpc::Slice>> slices_;
  uint64_t rest_ = 0;  // bytes of the payload still to come
};

}  // namespace strata
