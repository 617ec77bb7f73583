// The system instruction and the contents of a request in Gemini's form, made of parts. Pure; no
// byte of the input is trusted.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "node/chat/chat_message.h"
#include "node/grammar/json_schema.h"

namespace strata {

// "systemInstruction", then "contents" of the request `json`. kInvalidArgument (BadParam),
// kUnimplemented: parts other than text, thoughts, calls and results.
absl::Status ReadGeminiContents(const SchemaJson& json, std::vector<ChatMessage>* messages);

// The text of one content that has text alone; `path` is its place in the request.
absl::StatusOr<std::string> GeminiTextOf(const SchemaJson& content, const std::string& path);

}  // namespace strata
