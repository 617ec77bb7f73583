#include "transport/ucx_message.h"

#include <utility>

#include "transport/ucx_buffers.h"
#include "transport/ucx_seal.h"

namespace strata {
namespace {

size_t PaddedHeader(size_t header_bytes) {
  return (header_bytes + kUcxBufferAlign - 1) / kUcxBufferAlign * kUcxBufferAlign;
}

}  // namespace

UcxFrameParts SplitFrame(Frame frame) {
  UcxFrameParts parts{UcxKind::kFrame, EncodeFramePrefixAndHeader(frame), "", {}};
  parts.payload = std::move(frame.payload);
  if (frame.header.size() <= kUcxShortHeaderMax) return parts;
  parts.kind = UcxKind::kLongFrame;
  parts.long_header = parts.front.substr(kFramePrefixBytes);
  parts.long_header.resize(PaddedHeader(parts.long_header.size()));
  parts.front.resize(kFramePrefixBytes);
  return parts;
}

absl::Status CheckMessageSize(UcxKind kind, absl::string_view header, uint64_t size) {
  absl::Status wrong = absl::InvalidArgumentError("a message is not as large as it must be");
  if (header.size() < kUcxSumBytes) return wrong;
  const absl::string_view front = header.substr(kUcxSumBytes);
  switch (kind) {
    case UcxKind::kOpen:
      return front.size() == kUcxTokenBytes && size == 0 ? absl::OkStatus() : wrong;
    case UcxKind::kPing:
    case UcxKind::kEnd:
      return front.empty() && size == 0 ? absl::OkStatus() : wrong;
    case UcxKind::kFrame:
    case UcxKind::kLongFrame:
      break;
  }
  const absl::StatusOr<FramePrefix> prefix = DecodeFramePrefix(front);
  if (!prefix.ok()) return absl::InvalidArgumentError(prefix.status().message());
  const bool is_long = kind == UcxKind::kLongFrame;
  const uint64_t here = is_long ? 0 : prefix->header_bytes;
  const uint64_t there = is_long ? PaddedHeader(prefix->header_bytes) : 0;
  if (front.size() != kFramePrefixBytes + here || size != there + prefix->payload_bytes) {
    return wrong;
  }
  return absl::OkStatus();
}

absl::StatusOr<Frame> JoinFrame(UcxKind kind, absl::string_view front, const Payload& data) {
  const absl::string_view bytes = data.bytes();
  if (kind == UcxKind::kFrame) {
    const absl::string_view parts[] = {front, bytes};
    return DecodeFrame(parts, data.owner());
  }
  const absl::StatusOr<FramePrefix> prefix = DecodeFramePrefix(front);
  if (!prefix.ok()) return prefix.status();
  const absl::string_view parts[] = {front, bytes.substr(0, prefix->header_bytes),
                                     bytes.substr(PaddedHeader(prefix->header_bytes))};
  return DecodeFrame(parts, data.owner());
}

}  // namespace strata
