// Frames put together of a UCX link's messages: any messages between those of right frames, some of
// which are left out, of another kind or length, or with a wrong checksum. Only a message whose
// size is right is taken, as on a wire, and what is whole then is what was sent.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/fuzz/fuzz_input.h"
#include "transport/frame.h"
#include "transport/payload.h"
#include "transport/ucx_buffers.h"
#include "transport/ucx_message.h"
#include "transport/ucx_seal.h"

namespace strata {
namespace {

constexpr int kMessagesMax = 16;

void Check(bool right) {
  if (!right) std::abort();
}

// A link has handlers for these, and no others.
UcxKind KindOf(uint32_t number) { return static_cast<UcxKind>(1 + number % 6); }

struct Message {
  UcxKind kind;
  std::string front;
  std::string data;
  bool sum_is_right = true;
};

std::vector<Message> MessagesOf(const Frame& frame) {
  UcxFrameParts parts = SplitFrame(frame);
  const absl::string_view payload = parts.payload.bytes();
  std::vector<Message> messages;
  messages.push_back({parts.kind, parts.front,
                      parts.long_header + std::string(payload.substr(0, kUcxPieceBytes))});
  for (size_t at = kUcxPieceBytes; at < payload.size(); at += kUcxPieceBytes) {
    messages.push_back({UcxKind::kMore, "", std::string(payload.substr(at, kUcxPieceBytes))});
  }
  return messages;
}

class Wire {
 public:
  // A right frame's messages, of which `wrong`, if there is such a one, is what `change` makes of
  // it.
  void SendFrame(size_t header_bytes, size_t payload_bytes, size_t wrong, uint32_t change) {
    Frame frame;
    frame.type = FrameType::kStep;
    frame.header = std::string(header_bytes, 'h');
    frame.payload = Payload::Own(std::string(payload_bytes, static_cast<char>(change)));
    std::vector<Message> messages = MessagesOf(frame);
    bool right = between_;
    for (size_t i = 0; i < messages.size(); ++i) {
      Message& message = messages[i];
      if (i == wrong) {
        right = false;
        const uint32_t what = change % 4;
        if (what == 0) continue;
        if (what == 1) message.data.resize(message.data.size() / 4 * 4 + change / 4, 'x');
        if (what == 2) message.kind = KindOf(change / 4);
        if (what == 3) message.sum_is_right = false;
      }
      const std::optional<Frame> whole = Take(message);
      if (!right) continue;
      Check(whole.has_value() == (i + 1 == messages.size()));
      if (!whole.has_value()) continue;
      Check(whole->header == frame.header && whole->payload.bytes() == frame.payload.bytes());
    }
    Check(!right || between_);
  }

  // What its receiver does with a message; the frame, once it is whole.
  std::optional<Frame> Take(const Message& message) {
    const std::string header = std::string(kUcxSumBytes, '\0') + message.front;
    const bool size_is_right =
        CheckMessageSize(message.kind, header, message.data.size(), &rest_).ok();
    const bool is_of_frame = message.kind == UcxKind::kFrame ||
                             message.kind == UcxKind::kLongFrame || message.kind == UcxKind::kMore;
    if (size_is_right && message.sum_is_right && !is_of_frame) return std::nullopt;
    if (!size_is_right || !message.sum_is_right) {
      joiner_.Forget();
      between_ = rest_ == 0;
      return std::nullopt;
    }
    absl::StatusOr<std::optional<Frame>> frame =
        joiner_.Take(message.kind, message.front, Payload::Own(message.data), buffers_.get());
    between_ = rest_ == 0;
    if (!frame.ok()) return std::nullopt;
    return *std::move(frame);
  }

 private:
  const std::shared_ptr<UcxBuffers> buffers_ = UcxBuffers::Make();
  UcxJoiner joiner_;
  uint64_t rest_ = 0;
  bool between_ = true;  // the next message begins a frame
};

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  strata::FuzzInput input(data, size);
  strata::Wire wire;
  for (int messages = 0; messages < strata::kMessagesMax && !input.empty(); ++messages) {
    const uint32_t kind = input.Number(1);
    if (kind % 2 == 0) {
      strata::Message message{.kind = strata::KindOf(kind / 2)};
      message.front = input.Bytes(input.Number(1));
      message.data = std::string(input.Number(3) % (2 * strata::kUcxPieceBytes), 'd');
      (void)wire.Take(message);
    } else {
      const size_t header_bytes = input.Number(2) % (3 * strata::kUcxShortHeaderMax);
      const size_t payload_bytes = input.Number(3) % (3 * strata::kUcxPieceBytes);
      wire.SendFrame(header_bytes, payload_bytes, kind / 2 % 8, input.Number(1));
    }
  }
  return 0;
}
