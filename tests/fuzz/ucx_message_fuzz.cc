// Frames put together of a UCX link's messages: any messages between those of right frames, some of
// which are left out, of another kind or length, or with a wrong checksum. Only a message whose
// size is right is taken, as on a link, and a complete frame is one that was sent.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/support/ucx_messages.h"
#include "transport/link/frame.h"
#include "transport/link/payload.h"
#include "transport/ucx/ucx_buffers.h"
#include "transport/ucx/ucx_message.h"

namespace strata {
namespace {

using testing::UcxHeaderOf;
using testing::UcxMessage;
using testing::UcxMessagesOf;

constexpr int kMessagesMax = 16;

void Check(bool right) {
  if (!right) std::abort();
}

// A link has handlers for these, and no others.
UcxKind KindOf(uint32_t number) { return static_cast<UcxKind>(1 + number % 6); }

class Wire {
 public:
  // A right frame's messages, but `change` is applied to message `wrong`, if it exists.
  void SendFrame(size_t header_bytes, size_t payload_bytes, size_t wrong, uint32_t change) {
    Frame frame;
    frame.type = FrameType::kStep;
    frame.header = std::string(header_bytes, 'h');
    frame.payload = Payload::Own(std::string(payload_bytes, static_cast<char>(change)));
    std::vector<UcxMessage> messages = UcxMessagesOf(frame);
    bool right = between();
    for (size_t i = 0; i < messages.size(); ++i) {
      UcxMessage& message = messages[i];
      bool sum_is_right = true;
      if (i == wrong) {
        right = false;
        const uint32_t what = change % 4;
        if (what == 0) continue;
        if (what == 1) message.data.resize(message.data.size() / 4 * 4 + change / 4, 'x');
        if (what == 2) message.kind = KindOf(change / 4);
        if (what == 3) sum_is_right = false;
      }
      const std::optional<Frame> whole = Take(message, sum_is_right);
      if (!right) continue;
      Check(whole.has_value() == (i + 1 == messages.size()));
      if (!whole.has_value()) continue;
      Check(whole->header == frame.header && whole->payload.bytes() == frame.payload.bytes());
    }
    Check(!right || between());
  }

  // Handles a message as its receiver does; returns the frame, once it is complete.
  std::optional<Frame> Take(const UcxMessage& message, bool sum_is_right) {
    const std::string header = UcxHeaderOf(message.front);
    if (!CheckMessageSize(message.kind, header, message.data.size(), &rest_).ok() ||
        !sum_is_right) {
      joiner_.Forget();
      return std::nullopt;
    }
    if (message.kind != UcxKind::kFrame && message.kind != UcxKind::kLongFrame &&
        message.kind != UcxKind::kMore) {
      return std::nullopt;
    }
    absl::StatusOr<std::optional<Frame>> frame =
        joiner_.Take(message.kind, message.front, Payload::Own(message.data), buffers_.get());
    return frame.ok() ? *std::move(frame) : std::nullopt;
  }

 private:
  // The next message begins a frame.
  bool between() const { return rest_ == 0; }

  const std::shared_ptr<UcxBuffers> buffers_ = UcxBuffers::Make();
  UcxJoiner joiner_;
  uint64_t rest_ = 0;
};

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  strata::FuzzInput input(data, size);
  strata::Wire wire;
  for (int messages = 0; messages < strata::kMessagesMax && !input.empty(); ++messages) {
    const uint32_t kind = input.Number(1);
    if (kind % 2 == 0) {
      strata::UcxMessage message{.kind = strata::KindOf(kind / 2)};
      message.front = input.Bytes(input.Number(1));
      message.data = std::string(input.Number(3) % (2 * strata::kUcxPieceBytes), 'd');
      (void)wire.Take(message, /*sum_is_right=*/true);
    } else {
      const size_t header_bytes = input.Number(2) % (3 * strata::kUcxShortHeaderMax);
      const size_t payload_bytes = input.Number(3) % (3 * strata::kUcxPieceBytes);
      wire.SendFrame(header_bytes, payload_bytes, kind / 2 % 8, input.Number(1));
    }
  }
  return 0;
}
