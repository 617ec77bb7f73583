// Messages of a link over UCX: their layout, and how a frame is split into them. Part of links over
// UCX (ucx_link.h); no thread of its own.
//
// A message is one UCP active message. Its header is the checksum and a front, its data the rest:
//
//   kind        front                    data
//   kOpen       token                    -                     dialler's first, once
//   kFrame      frame prefix and header  payload's first piece
//   kLongFrame  frame prefix             header, zeros up to 64 bytes, payload's first piece
//   kMore       -                        payload's next piece
//   kPing       -                        -                     when nothing else was sent
//   kEnd        -                        -                     each side's last
//
// A piece has kUcxPieceBytes, the last one the rest. Only pings, or the end, may come between a
// frame's pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/link/frame.h"
#include "transport/link/payload.h"
#include "transport/ucx/ucx_buffers.h"

namespace strata {

enum class UcxKind : uint8_t {
  kOpen = 1,
  kFrame = 2,
  kLongFrame = 3,
  kPing = 4,
  kEnd = 5,
  kMore = 6
};

// UCX reports a message only once it is complete. With pieces a peer is not silent, unless a
// network takes a second for one: stages do not use UCX there (shard/serving/link_selector.h).
inline constexpr uint64_t kUcxPieceBytes = 1u << 20;
// Most bytes of a frame's header, without its prefix, in an active message's header.
inline constexpr size_t kUcxShortHeaderMax = 1024;

// A frame in the form that is sent.
struct UcxFrameParts {
  UcxKind kind;
  std::string front;
  std::string long_header;  // the frame's header where it does not fit there, padded
  Payload payload;
};
UcxFrameParts SplitFrame(Frame frame);

// Checks that a message with `header`, checksum included, may have `size` bytes of data. `rest` is
// the number of bytes still to come of the last frame's payload, 0 at first. kInvalidArgument: the
// size is wrong, or the front is invalid, or the message comes out of order.
absl::Status CheckMessageSize(UcxKind kind, absl::string_view header, uint64_t size,
                              uint64_t* rest);

// Assembles frames from messages that passed CheckMessageSize(), in the order received.
class UcxJoiner {
 public:
  // The frame, once it is complete; nothing before. kInvalidArgument for an invalid frame, or for a
  // piece without a frame; kResourceExhausted when there is no memory for it. After an invalid
  // message call Forget(): the rest of that frame's pieces are then pieces without a frame.
  // REQUIRES: `kind` is kFrame, kLongFrame or kMore.
  absl::StatusOr<std::optional<Frame>> Take(UcxKind kind, absl::string_view front,
                                            const Payload& data, UcxBuffers* buffers);
  void Forget() { data_ = nullptr; }

 private:
  // A frame in several pieces: its first message, and its data received so far.
  UcxKind kind_ = UcxKind::kFrame;
  std::string front_;
  std::shared_ptr<char> data_;  // null: no frame has begun; shared with the payload
  uint64_t size_ = 0;           // of the complete data
  uint64_t filled_ = 0;
};

}  // namespace strata
