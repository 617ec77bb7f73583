#include "transport/ucx/ucx_message.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/ucx/ucx_seal.h"

namespace strata {
namespace {

size_t PaddedHeader(size_t header_bytes) {
  return (header_bytes + kUcxBufferAlign - 1) / kUcxBufferAlign * kUcxBufferAlign;
}

absl::StatusOr<std::optional<Frame>> JoinFrame(UcxKind kind, absl::string_view front,
                                               const Payload& data) {
  absl::string_view header;  // empty where the header is in `front`
  absl::string_view payload = data.bytes();
  if (kind == UcxKind::kLongFrame) {
    const absl::StatusOr<FramePrefix> prefix = DecodeFramePrefix(front);
    if (!prefix.ok()) return prefix.status();
    header = payload.substr(0, prefix->header_bytes);
    payload = payload.substr(PaddedHeader(prefix->header_bytes));
  }
  const absl::string_view parts[] = {front, header, payload};
  absl::StatusOr<Frame> frame = DecodeFrame(parts, data.owner());
  if (!frame.ok()) return frame.status();
  return std::optional(*std::move(frame));
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

absl::Status CheckMessageSize(UcxKind kind, absl::string_view header, uint64_t size,
                              uint64_t* rest) {
  absl::Status wrong = absl::InvalidArgumentError("a message has the wrong size");
  if (header.size() < kUcxSumBytes) return wrong;
  const absl::string_view front = header.substr(kUcxSumBytes);
  switch (kind) {
    case UcxKind::kOpen:
      return front.size() == kUcxTokenBytes && size == 0 ? absl::OkStatus() : wrong;
    case UcxKind::kPing:
    case UcxKind::kEnd:
      return front.empty() && size == 0 ? absl::OkStatus() : wrong;
    case UcxKind::kMore:
      if (!front.empty() || size == 0 || size != std::min(*rest, kUcxPieceBytes)) return wrong;
      *rest -= size;
      return absl::OkStatus();
    case UcxKind::kFrame:
    case UcxKind::kLongFrame:
      break;
  }
  if (*rest > 0) return absl::InvalidArgumentError("a frame began before the last was complete");
  const absl::StatusOr<FramePrefix> prefix = DecodeFramePrefix(front);
  if (!prefix.ok()) return absl::InvalidArgumentError(prefix.status().message());
  const bool is_long = kind == UcxKind::kLongFrame;
  const uint64_t here = is_long ? 0 : prefix->header_bytes;
  const uint64_t there = is_long ? PaddedHeader(prefix->header_bytes) : 0;
  const uint64_t piece = std::min(prefix->payload_bytes, kUcxPieceBytes);
  if (front.size() != kFramePrefixBytes + here || size != there + piece) return wrong;
  *rest = prefix->payload_bytes - piece;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Frame>> UcxJoiner::Take(UcxKind kind, absl::string_view front,
                                                     const Payload& data, UcxBuffers* buffers) {
  if (kind != UcxKind::kMore) {
    const absl::StatusOr<FramePrefix> prefix = DecodeFramePrefix(front);
    if (!prefix.ok()) return prefix.status();
    if (prefix->payload_bytes <= kUcxPieceBytes) return JoinFrame(kind, front, data);
    kind_ = kind;
    front_ = std::string(front);
    size_ = data.size() + prefix->payload_bytes - kUcxPieceBytes;
    filled_ = 0;
    data_ = buffers->Get(size_);
    if (data_ == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", size_, " bytes"));
    }
  }
  if (data_ == nullptr || data.size() > size_ - filled_) {
    return absl::InvalidArgumentError("a piece of a payload came without the payload's beginning");
  }
  std::copy_n(data.data(), data.size(), data_.get() + filled_);
  filled_ += data.size();
  if (filled_ < size_) return std::nullopt;
  const char* const bytes = data_.get();
  return JoinFrame(kind_, front_, Payload::Share(std::exchange(data_, nullptr), bytes, size_));
}

}  // namespace strata
