// The messages of a link over UCX that carry a frame, as they are sent but for their checksums.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "transport/link/frame.h"
#include "transport/ucx/ucx_message.h"
#include "transport/ucx/ucx_seal.h"

namespace strata::testing {

struct UcxMessage {
  UcxKind kind;
  std::string front;
  std::string data;
};

inline std::vector<UcxMessage> UcxMessagesOf(Frame frame) {
  const UcxFrameParts parts = SplitFrame(std::move(frame));
  const absl::string_view payload = parts.payload.bytes();
  std::vector<UcxMessage> messages;
  messages.push_back({parts.kind, parts.front,
                      parts.long_header + std::string(payload.substr(0, kUcxPieceBytes))});
  for (size_t at = kUcxPieceBytes; at < payload.size(); at += kUcxPieceBytes) {
    messages.push_back({UcxKind::kMore, "", std::string(payload.substr(at, kUcxPieceBytes))});
  }
  return messages;
}

// The header of a message, with room for a checksum in front.
inline std::string UcxHeaderOf(absl::string_view front) {
  return std::string(kUcxSumBytes, '\0') + std::string(front);
}

}  // namespace strata::testing
