#include "transport/link/grpc_message.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace strata {
namespace {

// A slice of `owner`'s bytes; the last copy of the slice destroys `owner`.
template <typename Owner>
grpc::Slice SliceOf(Owner owner) {
  auto* moved = new Owner(std::move(owner));
  return grpc::Slice(
      const_cast<char*>(moved->data()), moved->size(),
      [](void* p) { delete static_cast<Owner*>(p); }, moved);
}

absl::string_view BytesOf(const grpc::Slice& slice) {
  return absl::string_view(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

// A frame's prefix; nothing where it is invalid: DecodeFrame() then reports the error.
std::optional<FramePrefix> PrefixOf(const std::vector<grpc::Slice>& message) {
  std::string bytes;
  for (const grpc::Slice& slice : message) {
    bytes += BytesOf(slice).substr(0, kFramePrefixBytes - bytes.size());
    if (bytes.size() == kFramePrefixBytes) break;
  }
  const absl::StatusOr<FramePrefix> prefix = DecodeFramePrefix(bytes);
  return prefix.ok() ? std::optional(*prefix) : std::nullopt;
}

}  // namespace

GrpcOutgoing::GrpcOutgoing(Frame frame) : front_(SliceOf(EncodeFramePrefixAndHeader(frame))) {
  if (!frame.payload.empty()) payload_ = SliceOf(std::move(frame.payload));
}

bool GrpcOutgoing::Next(grpc::ByteBuffer* message) {
  const size_t piece = std::min<uint64_t>(payload_.size(), kGrpcPieceBytes);
  absl::InlinedVector<grpc::Slice, 2> slices;
  if (front_.has_value()) slices.push_back(*std::exchange(front_, std::nullopt));
  if (piece > 0) slices.push_back(payload_.sub(0, piece));
  if (slices.empty()) return false;
  payload_ = payload_.sub(piece, payload_.size());
  *message = grpc::ByteBuffer(slices.data(), slices.size());
  return true;
}

absl::StatusOr<std::optional<Frame>> GrpcIncoming::Take(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) {
    slices_ = nullptr;
    return absl::InvalidArgumentError("an unreadable message");
  }
  uint64_t want = message.Length();
  if (slices_ == nullptr) {
    slices_ = std::make_shared<std::vector<grpc::Slice>>();
    rest_ = 0;
    const std::optional<FramePrefix> prefix = PrefixOf(slices);
    if (prefix.has_value() && prefix->payload_bytes > kGrpcPieceBytes) {
      want = kFramePrefixBytes + prefix->header_bytes + kGrpcPieceBytes;
      rest_ = prefix->payload_bytes - kGrpcPieceBytes;
    }
  } else {
    want = std::min<uint64_t>(rest_, kGrpcPieceBytes);
    rest_ -= want;
  }
  if (message.Length() != want) {
    slices_ = nullptr;
    return absl::InvalidArgumentError(
        absl::StrCat("a frame's next message has ", message.Length(), " bytes, not ", want));
  }
  slices_->insert(slices_->end(), slices.begin(), slices.end());
  if (rest_ > 0) return std::nullopt;

  absl::InlinedVector<absl::string_view, 32> parts;
  for (const grpc::Slice& slice : *slices_) parts.push_back(BytesOf(slice));
  return DecodeFrame(parts, std::exchange(slices_, nullptr));
}

}  // namespace strata
