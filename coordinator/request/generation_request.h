// What somebody asks of a pipeline: one text to go on with; and what is said about it at its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/frame.pb.h"

namespace strata {

enum class FinishReason { kLength, kEndOfGeneration, kCancelled };

struct GenerationRequest {
  std::string id;      // for people and logs; need not be unique
  std::string client;  // who shares fairly with whom; may be empty
  std::vector<int32_t> prompt;
  uint32_t tokens_max = 128;
  wire::SamplerSettings sampler;

  // At the context's end, half of what stands there behind the first `keep_tokens` is forgotten and
  // the text goes on; where the cache cannot do that, and by default, the text ends (kLength).
  bool shift_context = false;
  uint32_t keep_tokens = 0;

  // Of a text that was begun elsewhere: what was generated, which is not reported again, and
  // mirostat's running value after each of it. Counted in tokens_max.
  std::vector<int32_t> generated;
  std::vector<float> mirostat_mu;
};

// What one stage spent on the steps that a text had rows in, together with everybody else in them.
struct StageTotal {
  uint64_t queue_us = 0;
  uint64_t compute_us = 0;
  uint64_t sample_us = 0;
  uint64_t steps = 0;
  uint64_t bytes_in = 0;  // of frames over the link into it
};

struct GenerationUsage {
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;             // of the prompt, that stood in a KV cache already
  uint32_t tokens = 0;                    // reported, this time
  int64_t queued_us = 0;                  // until it had a slot
  int64_t prompt_us = 0;                  // from there to the first token
  int64_t decode_us = 0;                  // from the first token to the last
  std::vector<StageTotal> prompt_stages;  // by stage
  std::vector<StageTotal> decode_stages;
  std::optional<int32_t> end_token;  // that ended the text, and is not shown
};

// That a prompt leaves no room for an answer, with the words by which programs know this error.
std::string PromptTooLong(uint64_t prompt_tokens, uint32_t n_ctx);

}  // namespace strata
