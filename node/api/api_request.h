// A client's request, whatever dialect it came in: prompts or a chat, and how to generate from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "node/chat/chat_message.h"
#include "proto/frame.pb.h"

namespace strata {

inline constexpr int kApiJsonDepthMax = 64;
inline constexpr size_t kApiJsonValuesMax = 2'000'000;
inline constexpr size_t kApiChoicesMax = 64;               // choices of one request: prompts × n
inline constexpr uint64_t kApiPromptBytesMax = 16u << 20;  // of all choices of one request
inline constexpr size_t kApiStopsMax = 256;
inline constexpr size_t kApiStopBytesMax = 256;
inline constexpr size_t kApiLogitBiasMax = 1024;
inline constexpr uint32_t kApiTopLogprobsMax = 20;
inline constexpr size_t kApiStopTokensMax = 256;
inline constexpr size_t kApiAnswerChoicesMax = 1024;       // strings of which the output is one
inline constexpr uint32_t kApiOutputTokensMax = 1u << 24;  // to generate
inline constexpr size_t kApiMessagesMax = 4096;
inline constexpr size_t kApiInputsMax = 2048;  // of a request: to embed, or documents to rank
inline constexpr size_t kApiToolsMax = 256;
inline constexpr size_t kApiToolNameBytesMax = 128;

// A prompt as text or as tokens.
struct ApiPrompt {
  std::string text;
  std::vector<int32_t> tokens;  // empty: the text
};

// For embeddings.
struct EmbeddingRequest {
  std::string model;                     // empty: the only one
  std::vector<ApiPrompt> inputs;         // at least one, none of them empty
  bool is_base64 = false;                // of floats, little-endian
  bool truncates = false;                // inputs that exceed the context lose their end
  std::optional<int64_t> keep_alive_ms;  // as of wire::GenerateRequest
  std::optional<uint32_t> dimensions;    // the first so many, made of length 1 again; unset: all
};

// How well each document answers a query.
struct RankRequest {
  std::string model;                   // empty: the only one
  std::string query;                   // not empty
  std::string instruction;             // what counts; empty: as of a search on the web
  std::vector<std::string> documents;  // at least one
};

// The output is to stand between each prompt and a suffix.
struct ApiInfill {
  struct File {
    std::string name, text;
  };
  std::string suffix;
  std::vector<File> files;  // others that are shown to the model
};

struct ApiRequest {
  bool chat = false;
  std::string model;                  // empty: the only one
  std::vector<ApiPrompt> prompts;     // of a completion; at least one
  std::vector<ChatMessage> messages;  // of a chat; at least one
  std::optional<ApiInfill> infill;    // of a completion of texts
  // Of a completion: prompts lose what is before their last tokens, so many; 0: as many as there is
  // room for.
  std::optional<uint32_t> prompt_tokens_max;
  uint32_t n = 1;                        // choices for each prompt
  std::optional<int64_t> keep_alive_ms;  // as of wire::GenerateRequest
  bool stream = false;
  bool include_usage = false;
  bool usage_in_pieces = false;    // of a stream: each piece has the usage so far
  bool timings_in_pieces = false;  // of a stream: each piece has the times so far
  bool no_cache = false;           // as GenerationRequest's
  std::string cache_salt;          // requests with another one share nothing of the caches
  bool with_progress = false;      // of a stream: says how far its prompts have been processed
  // Of a chat: the client knows tool calls as OpenAI's older "function_call", one in a message.
  bool calls_functions = false;
  std::optional<uint32_t> tokens_max;  // unset: as far as the context goes
  // The first choice's seed; each further one has the next. Random where the client gives none.
  wire::SamplerSettings sampler;
  std::vector<std::string> stops;
  bool show_stop = false;      // the stop string is part of the output
  bool parse_special = false;  // of a completion: control tokens in its prompt are read as such
  bool no_special = false;     // of a completion: nothing is put before its prompt
  bool logprobs = false;
  uint32_t top_logprobs = 0;    // with these: so many of the likeliest tokens at each place
  bool tokens_as_ids = false;   // with these: "token_id:7" instead of a token's text
  bool returns_tokens = false;  // pieces have their tokens, and a choice's first piece its prompt's
  // The log-probabilities of the prompt's tokens, with so many of the likeliest ones at each place.
  std::optional<uint32_t> prompt_top;
  // At the context's end, where the model can: forget the older half behind `keep_tokens`.
  bool shift_context = false;
  uint32_t keep_tokens = 0;
  std::optional<wire::Speculation> speculation;  // unset: the model's
  std::string prediction;  // the output is expected to repeat it, and is the same without
  bool echo = false;  // of a completion: the output begins with the prompt, and so do its logprobs
  uint32_t best_of = 0;  // of a completion: how many of the `n` are returned; 0: all
  // Of a chat: how its template renders the prompt (ChatTemplate::RenderOptions).
  bool ends_with_opening = true;
  bool continues_last = false;
  std::string template_variables;
  bool splits_thoughts = true;                 // false: they stay in the content
  bool shows_thoughts = true;                  // false: they are not in the response
  std::optional<uint32_t> thought_tokens_max;  // unset: as far as the model goes; 0: no thought
  std::string answer_schema;   // text of a JSON Schema that constrains the output; empty: none
  std::string answer_path;     // path of the schema in the request, for errors
  bool answer_strict = false;  // an answer that does not meet it is an error
  // The sampler's grammar is that of the answer behind a thought (Constrain()), not of the whole
  // output.
  bool constrains_answer = false;
  ChatTools tools;
  // Whose grammar is not strict enough (Constrain): what is checked at the end.
  bool checks_answer = false;
  std::vector<std::string> checked_tools;  // by name
};

}  // namespace strata
