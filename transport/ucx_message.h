// Messages of a link over UCX: what stands where, and how a frame is put into one. Part of links
// over UCX (ucx_link.h); no thread of its own.
//
// A message is one UCP active message. Its header is the checksum and a front, its data the rest:
//
//   kind        front                    data
//   kOpen       token                    -                     dialler's first, once
//   kFrame      frame prefix and header  payload
//   kLongFrame  frame prefix             header, zeros up to 64 bytes, payload
//   kPing       -                        -                     when nothing else was sent
//   kEnd        -                        -                     each side's last
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/frame.h"
#include "transport/payload.h"

namespace strata {

enum class UcxKind : uint8_t { kOpen = 1, kFrame = 2, kLongFrame = 3, kPing = 4, kEnd = 5 };

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
// kInvalidArgument: not, or its front is none.
absl::Status CheckMessageSize(UcxKind kind, absl::string_view header, uint64_t size);

// The frame in a message of right size. kInvalidArgument when it is none.
absl::StatusOr<Frame> JoinFrame(UcxKind kind, absl::string_view front, const Payload& data);

}  // namespace strata
