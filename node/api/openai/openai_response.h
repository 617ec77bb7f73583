// Responses in OpenAI's forms, whole and as events of a stream. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "node/chat/template_check.h"
#include "proto/coordinator.pb.h"
#include "proto/frame.pb.h"

namespace strata {

// The members that every event of one response repeats.
struct ApiAnswer {
  bool chat = false;
  std::string id;         // "chatcmpl-…" or "cmpl-…"
  int64_t created_s = 0;  // since 1970
  std::string model;
};

struct ApiUsage {
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;  // of those
  uint64_t completion_tokens = 0;
  uint64_t reasoning_tokens = 0;  // of those
};

// A tool call, or the next piece of it.
struct ApiCallPiece {
  uint32_t index = 0;
  std::string id, name;   // in a stream: in the call's first piece only
  std::string arguments;  // JSON's text
};

// A choice, or the next piece of it.
struct ApiPiece {
  uint32_t index = 0;
  bool first = false;  // of its choice
  std::string text;
  std::string thought = {};   // "reasoning_content", as DeepSeek's API has it
  std::string finish_reason;  // "stop", "length", "tool_calls"; empty: not yet
  // The stop string or token of the request that ended the choice, if one did.
  std::string stop_string = {};
  std::optional<int32_t> stop_token = {};
  bool logprobs = false;
  std::vector<wire::SampledToken> tokens = {};  // with `logprobs`: the tokens of `text`
  std::vector<uint64_t> text_offsets = {};      // of a completion: the character each begins in
  std::vector<ApiCallPiece> calls = {};
};

// One event of a stream: "data: {…}\n\n". With `include_usage` every piece says "usage":null.
std::string PieceEvent(const ApiAnswer& answer, const ApiPiece& piece, bool include_usage);
std::string UsageEvent(const ApiAnswer& answer, const ApiUsage& usage);
std::string ErrorEvent(absl::string_view error_json);
inline constexpr absl::string_view kDoneEvent = "data: [DONE]\n\n";
// A comment, which clients ignore: proxies cut a stream that is quiet for long.
inline constexpr absl::string_view kQuietComment = ": waiting\n\n";

// The whole response, `choices` by index.
std::string WholeResponse(const ApiAnswer& answer, const std::vector<ApiPiece>& choices,
                          const ApiUsage& usage);

// GET /v1/models and /v1/models/ID.
// REQUIRES: `chat` has the state of each model's chat template, in order.
std::string ModelsJson(const std::vector<wire::ModelStatus>& models,
                       const std::vector<ChatSupport>& chat, int64_t now_s);
std::string ModelJson(const wire::ModelStatus& model, const ChatSupport& chat, int64_t now_s);

}  // namespace strata
