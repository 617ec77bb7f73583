// Messages of a link over UCX: what stands where, and how a frame is put into them. Part of links
// over UCX (ucx_link.h); no thread of its own.
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
// A piece has kUcxPieceBytes, the last one what is left. Between a frame's pieces come pings, or
// the end.
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

// UCX tells of a message when all of it is there. A peer that sends pieces is not silent, unless a
// network takes a second for one: stages do not use UCX on those (shard/serving/link_selector.h).
inline constexpr uint64_t kUcxPieceBytes = 1u << 20;
// Of a frame's header, beside its prefix, in an active message's header.
inline constexpr size_t kUcxShortHeaderMax = 1024;

// A frame as it leaves.
struct UcxFrameParts {
  UcxKind kind;
  std::string front;
  std::string long_header;  // what did not fit there, padded
  Payload payload;
};
UcxFrameParts SplitFrame(Frame frame);

// Whether a message whose header is `header`, checksum included, may have `size` bytes of data.
// `rest` is what must still come of the payload of the frame before, 0 at first. kInvalidArgument:
// not, or its front is none, or it is not its turn.
absl::Status CheckMessageSize(UcxKind kind, absl::string_view header, uint64_t size,
                              uint64_t* rest);

// Puts frames together of messages of right size, in the order in which they came.
class UcxJoiner {
 public:
  // The frame, once it is whole; nothing before. `kind` is one of a frame's. kInvalidArgument when
  // it is none, or a piece of none; kResourceExhausted when there is no memory for it. What came of
  // a frame after one of its messages was wrong is a piece of none: Forget().
  absl::StatusOr<std::optional<Frame>> Take(UcxKind kind, absl::string_view front,
                                            const Payload& data, UcxBuffers* buffers);
  void Forget() { data_ = nullptr; }

 private:
  // Of a frame in several pieces: its first message, and its data as far as it came.
  UcxKind kind_ = UcxKind::kFrame;
  std::string front_;
  std::shared_ptr<char> data_;  // null: none has begun; shared with the payload
  uint64_t size_ = 0;           // that it will have
  uint64_t filled_ = 0;
};

}  // namespace strata
