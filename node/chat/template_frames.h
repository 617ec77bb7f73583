// What a node and its template processes say to each other over a socket: a length of eight bytes,
// little endian, and so many bytes of CBOR. Pure but for the two that read and write. The answers
// are those of a process that a stranger's template ran in: every byte is judged.
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
  std::vector<ChatMessage> messages;
  ChatTools tools;
  absl::Time now;
  ChatTemplate::Wish wish = {};
};
std::string EncodeTemplateRequest(const TemplateRequest& question);
absl::StatusOr<TemplateRequest> DecodeTemplateRequest(absl::string_view bytes);

struct TemplateResult {
  // A first answer says only that the template was read; kInvalidArgument: in its words, why not.
  bool is_read = false;
  absl::StatusOr<ChatTemplate::Prompt> prompt = ChatTemplate::Prompt();
  uint64_t grown_bytes = 0;  // more memory than the process had at first
  uint64_t used_us = 0;      // of a processor
};
std::string EncodeTemplateResult(const TemplateResult& answer);
// kDataLoss: this is none.
absl::StatusOr<TemplateResult> DecodeTemplateResult(absl::string_view bytes);

// Block until then. kDeadlineExceeded; kUnavailable: nobody is at the other end; kDataLoss: a frame
// of more than `bytes_max`.
absl::Status WriteTemplateFrame(int socket, absl::string_view bytes, SteadyTime deadline);
absl::StatusOr<std::string> ReadTemplateFrame(int socket, size_t bytes_max, SteadyTime deadline);

}  // namespace strata
