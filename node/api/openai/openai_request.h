// What a client asks in OpenAI's forms (/v1/completions, /v1/chat/completions), read from its JSON.
// Pure; every byte is a stranger's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "node/chat/chat_message.h"
#include "proto/frame.pb.h"

namespace strata {

inline constexpr int kApiJsonDepthMax = 64;
inline constexpr size_t kApiJsonValuesMax = 2'000'000;
inline constexpr size_t kApiChoicesMax = 64;               // texts of one request: prompts × n
inline constexpr uint64_t kApiPromptBytesMax = 16u << 20;  // of all texts of one request
inline constexpr size_t kApiStopsMax = 256;
inline constexpr size_t kApiStopBytesMax = 256;
inline constexpr size_t kApiLogitBiasMax = 1024;
inline constexpr uint32_t kApiTopLogprobsMax = 20;
inline constexpr size_t kApiStopTokensMax = 256;
inline constexpr size_t kApiAnswerChoicesMax = 1024;  // texts of which an answer is one
inline constexpr size_t kApiMessagesMax = 4096;
inline constexpr size_t kApiToolsMax = 256;

// A prompt as text or as tokens.
struct ApiPrompt {
  std::string text;
  std::vector<int32_t> tokens;  // empty: the text
};

struct ApiRequest {
  bool chat = false;
  std::string model;                  // empty: the only one
  std::vector<ApiPrompt> prompts;     // of a completion; at least one
  std::vector<ChatMessage> messages;  // of a chat; at least one
  uint32_t n = 1;                     // texts for each prompt
  bool stream = false;
  bool include_usage = false;
  std::optional<uint32_t> tokens_max;  // unset: as far as the context goes
  // The seed of the first text; each further one has the next. Drawn where the client gives none.
  wire::SamplerSettings sampler;
  std::vector<std::string> stops;
  bool show_stop = false;   // the stop string is part of the text
  bool no_special = false;  // of a completion: nothing is put before its prompt
  bool logprobs = false;
  // At the context's end, where the model can: forget the older half behind `keep_tokens`.
  bool shift_context = false;
  uint32_t keep_tokens = 0;
  bool echo = false;     // of a completion: its prompt before it
  uint32_t best_of = 0;  // of a completion: how many of the `n` are told; 0: all
  // Of a chat: how its template makes the prompt (ChatTemplate::Wish).
  bool ends_with_opening = true;
  bool continues_last = false;
  std::string template_variables;
  std::string answer_schema;  // a JSON Schema's text that the answer meets; empty: none
  std::string answer_path;    // how the client knows it
  ChatTools tools;
};

// kInvalidArgument: what is wrong with which field; kUnimplemented: a field that means something
// which is not there yet (node/api/openai/openai_fields.h). Fields that nobody knows are ignored.
absl::StatusOr<ApiRequest> ParseCompletion(absl::string_view body);
absl::StatusOr<ApiRequest> ParseChat(absl::string_view body);

}  // namespace strata
