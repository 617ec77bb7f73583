// Frames put together of a call's messages: any bytes between messages of right frames, some of
// them left out or of another length. A complete frame is one that was sent.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "proto/frame.pb.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/support/raw_message.h"
#include "transport/link/grpc_message.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

class Peer {
 public:
  // Sends a right frame, but message `wrong`, if it exists, is `change` bytes longer, or left out
  // where that is 0.
  void SendFrame(uint32_t id, size_t payload_bytes, size_t wrong, int change) {
    wire::Step step;
    step.set_step_id(id);
    const std::string payload(payload_bytes, static_cast<char>(id));
    const Frame frame = MakeFrame(FrameType::kStep, step, Payload::Own(payload));
    GrpcOutgoing outgoing(frame);
    bool right = between_;
    size_t i = 0;
    for (grpc::ByteBuffer message; outgoing.Next(&message); ++i) {
      if (i == wrong) {
        right = false;
        if (change == 0) continue;
        std::string bytes = testing::BytesOf(message);
        bytes.resize(std::max<int64_t>(0, static_cast<int64_t>(bytes.size()) + change), 'x');
        message = testing::MessageOf(bytes);
      }
      const absl::StatusOr<std::optional<Frame>> whole = Take(message);
      if (!right) continue;
      Check(whole.ok());
      if (!whole->has_value()) continue;
      Check((*whole)->header == frame.header && (*whole)->payload.bytes() == payload);
    }
    Check(!right || between_);
  }
  void SendBytes(const std::string& bytes) { (void)Take(testing::MessageOf(bytes)); }

 private:
  absl::StatusOr<std::optional<Frame>> Take(const grpc::ByteBuffer& message) {
    absl::StatusOr<std::optional<Frame>> whole = incoming_.Take(message);
    between_ = !whole.ok() || whole->has_value();
    return whole;
  }

  GrpcIncoming incoming_;
  bool between_ = true;  // the next message begins a frame
};

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  strata::FuzzInput input(data, size);
  strata::Peer peer;
  for (int messages = 0; messages < 16 && !input.empty(); ++messages) {
    const uint32_t kind = input.Number(1);
    if (kind % 2 == 0) {
      peer.SendBytes(input.Bytes(kind / 2));
    } else {
      const size_t payload_bytes = input.Number(3) % (4 * strata::kGrpcPieceBytes);
      const int change = static_cast<int>(input.Number(1)) - 128;
      peer.SendFrame(kind, payload_bytes, kind / 2 % 8, change);
    }
  }
  return 0;
}
