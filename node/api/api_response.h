// A response, whole or in pieces, and how a dialect writes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/request/generation_request.h"
#include "node/http/http_server.h"
#include "proto/frame.pb.h"

namespace strata {

struct ApiUsage {
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;  // of those
  uint64_t completion_tokens = 0;
  uint64_t reasoning_tokens = 0;  // of those
  uint64_t draft_tokens = 0;      // that stages computed before they were known to be right
  uint64_t accepted_tokens = 0;   // of those, right
  // Since the request came. The first token ends the prompt's time.
  absl::Duration first_token = absl::ZeroDuration();
  absl::Duration total = absl::ZeroDuration();
};

struct ApiEmbeddings {
  std::vector<std::vector<float>> vectors;  // of each input, of length 1
  uint64_t prompt_tokens = 0;
};

struct ApiScores {
  std::vector<double> scores;  // of each document, from 0 to 1
  uint64_t prompt_tokens = 0;
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
  std::string thought = {};   // what the model thought
  std::string finish_reason;  // "stop", "length", "tool_calls"; empty: not yet
  // The stop string or token of the request that ended the choice, if one did.
  std::string stop_string = {};
  std::optional<int32_t> stop_token = {};
  bool logprobs = false;
  // With `logprobs`, or where the request wants its tokens: those of `text`.
  std::vector<wire::SampledToken> tokens = {};
  std::vector<uint64_t> text_offsets = {};  // of a completion: the character each begins in
  bool begins_prompt = false;  // the first one is a prompt's, and has no log-probability
  std::vector<int32_t> prompt_tokens = {};            // ApiRequest::returns_tokens
  std::vector<wire::PromptToken> prompt_scores = {};  // ApiRequest::prompt_top
  std::vector<ApiCallPiece> calls = {};
  ApiUsage usage = {};  // of the response so far
};

// The part of a choice's prompt that has been processed.
struct ApiProgress {
  uint32_t index = 0;  // of the choice
  PromptProgress prompt;
  absl::Duration time = absl::ZeroDuration();  // since the request came
};

// Writes one response in a dialect: as a stream of events, or whole. Not thread-safe.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  // The head of a stream; its body may be empty. `firsts`: the choices of which no piece was
  // written yet, each with its index. `usage`: so far, without its times.
  virtual HttpResponse Begin(const std::vector<ApiPiece>& firsts, const ApiUsage& usage) = 0;
  // Events of a stream whose client asks how far it is; may be empty.
  virtual std::string Progress(const ApiProgress& /*progress*/) { return ""; }
  // Events of the next piece of a choice; may be empty. Pieces may come before Begin().
  virtual std::string Piece(const ApiPiece& piece) = 0;
  // The last events, once all choices have their finish reason.
  virtual std::string End(const ApiUsage& usage) = 0;
  // The last events of a stream that failed.
  virtual std::string Failure(const absl::Status& status) = 0;

  // The whole response; `choices` by index.
  virtual HttpResponse Whole(const std::vector<ApiPiece>& choices, const ApiUsage& usage) = 0;
  // The response of a request that failed before anything was sent.
  virtual HttpResponse Error(const absl::Status& status) = 0;
};

}  // namespace strata
