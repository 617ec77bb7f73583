#include "transport/link/frame.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/crc/crc32c.h"
#include "absl/log/check.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

constexpr absl::string_view kMagic = "STRF";
constexpr uint8_t kLayoutVersion = 1;
constexpr size_t kCheckedBytes = 12;  // of the prefix, covered by its CRC
// The best alignment for SIMD loads; any multiple of alignof(float) would be correct.
constexpr size_t kPayloadAlign = 64;

void StoreLittle(char* to, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) to[i] = static_cast<char>(value >> (8 * i));
}

uint64_t LoadLittle(const char* from, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(from[i])) << (8 * i);
  }
  return value;
}

uint32_t HeaderCrc(absl::string_view checked, absl::string_view header) {
  return static_cast<uint32_t>(absl::ExtendCrc32c(absl::ComputeCrc32c(checked), header));
}

bool IsFrameType(uint8_t type) {
  return type >= static_cast<uint8_t>(FrameType::kHello) &&
         type <= static_cast<uint8_t>(FrameType::kError);
}

// Reads bytes that lie in several pieces.
class PartReader {
 public:
  explicit PartReader(absl::Span<const absl::string_view> parts) : parts_(parts) { SkipEmpty(); }

  // The unread bytes of the current piece.
  absl::string_view rest() const {
    return parts_.empty() ? absl::string_view() : parts_.front().substr(offset_);
  }

  // REQUIRES: `size` bytes are left.
  void CopyTo(char* to, size_t size) {
    while (size > 0) {
      const absl::string_view from = rest().substr(0, size);
      std::memcpy(to, from.data(), from.size());
      to += from.size();
      size -= from.size();
      offset_ += from.size();
      SkipEmpty();
    }
  }

 private:
  void SkipEmpty() {
    while (!parts_.empty() && offset_ == parts_.front().size()) {
      parts_.remove_prefix(1);
      offset_ = 0;
    }
  }

  absl::Span<const absl::string_view> parts_;
  size_t offset_ = 0;  // in parts_.front()
};

Payload ReadPayload(PartReader* reader, size_t size, std::shared_ptr<const void> owner) {
  if (size == 0) return {};
  const absl::string_view here = reader->rest();
  if (here.size() >= size && reinterpret_cast<uintptr_t>(here.data()) % alignof(float) == 0) {
    return Payload::Share(std::move(owner), here.data(), size);
  }
  std::shared_ptr<void> copy(::operator new(size, std::align_val_t(kPayloadAlign)), [](void* p) {
    ::operator delete(p, std::align_val_t(kPayloadAlign));
  });
  reader->CopyTo(static_cast<char*>(copy.get()), size);
  const void* data = copy.get();
  return Payload::Share(std::move(copy), data, size);
}

}  // namespace

Frame MakeFrame(FrameType type, const google::protobuf::MessageLite& message, Payload payload) {
  Frame frame;
  frame.type = type;
  frame.header = message.SerializeAsString();
  frame.payload = std::move(payload);
  return frame;
}

absl::Status ParseHeader(const Frame& frame, google::protobuf::MessageLite* message) {
  if (message->ParseFromString(frame.header)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a frame's header is not a ", message->GetTypeName()));
}

std::string EncodeFramePrefixAndHeader(const Frame& frame) {
  CHECK_LE(frame.header.size(), kFrameHeaderBytesMax);
  CHECK_LE(frame.payload.size(), kFramePayloadBytesMax);
  std::string bytes(kFramePrefixBytes, '\0');
  bytes.reserve(kFramePrefixBytes + frame.header.size());
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  StoreLittle(&bytes[4], kLayoutVersion, 1);
  StoreLittle(&bytes[5], static_cast<uint8_t>(frame.type), 1);
  StoreLittle(&bytes[8], frame.header.size(), 4);
  const absl::string_view checked = absl::string_view(bytes).substr(0, kCheckedBytes);
  StoreLittle(&bytes[12], HeaderCrc(checked, frame.header), 4);
  StoreLittle(&bytes[16], frame.payload.size(), 8);
  bytes += frame.header;
  return bytes;
}

absl::StatusOr<FramePrefix> DecodeFramePrefix(absl::string_view bytes) {
  if (bytes.size() < kFramePrefixBytes) {
    return absl::OutOfRangeError(absl::StrCat("a frame's prefix has ", kFramePrefixBytes,
                                              " bytes, but only ", bytes.size(), " came"));
  }
  if (!bytes.starts_with(kMagic)) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a frame: it starts with \"", absl::CHexEscape(bytes.substr(0, 4)), "\""));
  }
  const uint64_t layout = LoadLittle(&bytes[4], 1);
  if (layout != kLayoutVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame layout version ", layout, ", not ", kLayoutVersion));
  }
  const uint8_t type = static_cast<uint8_t>(bytes[5]);
  if (!IsFrameType(type)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown frame type ", type));
  }
  if (LoadLittle(&bytes[6], 2) != 0) {
    return absl::InvalidArgumentError("a frame's reserved bits are set");
  }
  FramePrefix prefix;
  prefix.type = static_cast<FrameType>(type);
  prefix.header_bytes = static_cast<uint32_t>(LoadLittle(&bytes[8], 4));
  prefix.crc = static_cast<uint32_t>(LoadLittle(&bytes[12], 4));
  prefix.payload_bytes = LoadLittle(&bytes[16], 8);
  if (prefix.header_bytes > kFrameHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a frame's header of ", prefix.header_bytes,
                                                   " bytes; at most ", kFrameHeaderBytesMax));
  }
  if (prefix.payload_bytes > kFramePayloadBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a frame's payload of ", prefix.payload_bytes,
                                                   " bytes; at most ", kFramePayloadBytesMax));
  }
  return prefix;
}

absl::StatusOr<Frame> DecodeFrame(absl::Span<const absl::string_view> parts,
                                  std::shared_ptr<const void> owner) {
  uint64_t total = 0;
  for (const absl::string_view part : parts) total += part.size();

  PartReader reader(parts);
  char front[kFramePrefixBytes];
  const size_t front_bytes = std::min<uint64_t>(total, kFramePrefixBytes);
  reader.CopyTo(front, front_bytes);
  const absl::StatusOr<FramePrefix> prefix =
      DecodeFramePrefix(absl::string_view(front, front_bytes));
  if (!prefix.ok()) return absl::InvalidArgumentError(prefix.status().message());

  const uint64_t want = kFramePrefixBytes + prefix->header_bytes + prefix->payload_bytes;
  if (total != want) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of ", want, " bytes was received with ", total, " bytes"));
  }
  Frame frame;
  frame.type = prefix->type;
  frame.header.resize(prefix->header_bytes);
  reader.CopyTo(frame.header.data(), prefix->header_bytes);
  if (HeaderCrc(absl::string_view(front, kCheckedBytes), frame.header) != prefix->crc) {
    return absl::InvalidArgumentError("a frame's header does not match its checksum");
  }
  frame.payload = ReadPayload(&reader, prefix->payload_bytes, std::move(owner));
  return frame;
}

absl::StatusOr<Frame> DecodeFrame(const Payload& bytes) {
  const absl::string_view part = bytes.bytes();
  return DecodeFrame(absl::MakeConstSpan(&part, 1), bytes.owner());
}

}  // namespace strata
