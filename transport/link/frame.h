// The unit that a link carries: a type, a protobuf header (proto/frame.proto) and a raw payload.
//
// Bytes, all integers little-endian:
//
//   offset  size  what
//        0     4  magic "STRF"
//        4     1  layout version, 1
//        5     1  FrameType
//        6     2  reserved, 0
//        8     4  header bytes, at most kFrameHeaderBytesMax
//       12     4  CRC-32C of bytes 0..11 and of the header
//       16     8  payload bytes, at most kFramePayloadBytesMax
//       24     -  header: one protobuf message, by FrameType
//        -     -  payload: activations [n_tokens, n_embd], little-endian, or empty; as what
//                 (f32, …) Step.activation_type says
//
// Decoding takes untrusted bytes: it never asserts, allocates no more than the bytes it was given,
// and is fuzzed (tests/fuzz/frame_fuzz.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/message_lite.h"
#include "transport/link/payload.h"

namespace strata {

inline constexpr size_t kFramePrefixBytes = 24;
inline constexpr uint32_t kFrameHeaderBytesMax = 16u << 20;
inline constexpr uint64_t kFramePayloadBytesMax = 1ull << 30;

enum class FrameType : uint8_t {
  kHello = 1,   // wire::Hello
  kCredit = 2,  // wire::Credit
  kClose = 3,   // wire::Status: why; nothing follows
  kStep = 4,    // wire::Step, payload activations
  kResult = 5,  // wire::Result
  kError = 6,   // wire::StepError
};

struct Frame {
  FrameType type = FrameType::kStep;
  std::string header;  // serialized message named beside FrameType
  Payload payload;
};

// A frame with `message` as its header.
Frame MakeFrame(FrameType type, const google::protobuf::MessageLite& message, Payload payload = {});

// Its size in bytes on a link.
inline uint64_t FrameBytes(const Frame& frame) {
  return kFramePrefixBytes + frame.header.size() + frame.payload.size();
}

// kInvalidArgument when the header does not parse as `message`.
absl::Status ParseHeader(const Frame& frame, google::protobuf::MessageLite* message);

// The prefix and header as bytes; the payload follows them on the link, unchanged.
std::string EncodeFramePrefixAndHeader(const Frame& frame);

struct FramePrefix {
  FrameType type;
  uint32_t header_bytes;
  uint64_t payload_bytes;
  uint32_t crc;
};

// Reads the first kFramePrefixBytes of `bytes`. kOutOfRange when there are fewer; kInvalidArgument
// when the magic, the version, the type, a reserved bit or a size is wrong.
absl::StatusOr<FramePrefix> DecodeFramePrefix(absl::string_view bytes);

// Reads one frame; `bytes` must be exactly one. The payload shares `bytes`' owner and is not
// copied, unless it has to be moved to be aligned for floats. kInvalidArgument for any error.
absl::StatusOr<Frame> DecodeFrame(const Payload& bytes);

// The same for a frame in several pieces, which stay valid for as long as `owner` lives. The
// payload is copied, once, unless it lies in one piece that is aligned for floats.
absl::StatusOr<Frame> DecodeFrame(absl::Span<const absl::string_view> parts,
                                  std::shared_ptr<const void> owner);

}  // namespace strata
