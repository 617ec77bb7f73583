// The chat templates of a model: its file's own, or the one that a load names. Nothing here reads
// Jinja. Pure.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"
#include "shard/model/gguf.h"

namespace strata {

inline constexpr size_t kChatTemplateBytesMax = 256 * 1024;  // a longer one of a file is left out
// One that a load gives, for the next coordinator has to know it (membership_types.h).
inline constexpr size_t kGivenChatTemplateBytesMax = 64 * 1024;

struct ChatTemplates {
  std::string usual;       // Jinja; empty: none
  std::string with_tools;  // for chats that offer tools; empty: the usual one
};
// kInvalidArgument: the load gives a template that is too long, or names one that the file does not
// have; then the message lists those that it has.
absl::StatusOr<ChatTemplates> ChatTemplatesOf(const GgufHeader& header,
                                              const wire::LoadModelRequest& request);

}  // namespace strata
