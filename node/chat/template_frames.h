// The protocol between a node and its template processes over a socket: a length of eight bytes,
// little endian, and so many bytes of a message (proto/template.proto). Pure but for the two
// functions that read and write. The process ran an untrusted template, so no byte of its results
// is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "node/chat/chat_message.h"
#include "node/chat/chat_template.h"
#include "transport/base/steady_time.h"

namespace strata {

inline constexpr size_t kTemplateRequestBytesMax = 128 * 1024 * 1024;
inline constexpr size_t kTemplateResultBytesMax = kChatPromptBytesMax + 64 * 1024;

struct TemplateRequest {
  ChatTemplate::Source source;
  std::vector<ChatMessage> messages = {};
  ChatTools tools = {};
  absl::Time now = {};
  ChatTemplate::RenderOptions options = {};
};
std::string EncodeTemplateRequest(const TemplateRequest& request);
absl::StatusOr<TemplateRequest> DecodeTemplateRequest(absl::string_view bytes);

struct TemplateResult {
  // True in the first result, which reports only that the template was parsed.
  bool is_read = false;
  // kInvalidArgument: the template's own error message.
  absl::StatusOr<ChatTemplate::Prompt> prompt = ChatTemplate::Prompt();
  uint64_t grown_bytes = 0;  // growth of the process' memory since its start
  uint64_t used_us = 0;      // processor time
};
std::string EncodeTemplateResult(const TemplateResult& result);
// kDataLoss: the bytes are not a result.
absl::StatusOr<TemplateResult> DecodeTemplateResult(absl::string_view bytes);

// Block until `deadline` at most. kDeadlineExceeded; kUnavailable: the other end is closed;
// kDataLoss: a frame of more than `bytes_max`.
absl::Status WriteTemplateFrame(int socket, absl::string_view bytes, SteadyTime deadline);
absl::StatusOr<std::string> ReadTemplateFrame(int socket, size_t bytes_max, SteadyTime deadline);

}  // namespace strata
