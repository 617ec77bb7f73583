// A request to a pipeline: a prompt to continue, and the usage that is reported at its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/frame.pb.h"

namespace strata {

enum class FinishReason { kLength, kEndOfGeneration, kCancelled };

inline constexpr size_t kCacheScopeBytesMax = 40;

struct GenerationRequest {
  std::string id;      // for people and logs; need not be unique
  std::string client;  // the unit of fair sharing; may be empty
  // Requests of other scopes neither use what the caches keep of this one, nor find out by its
  // absence what it was. A secret of the client's token, of at most kCacheScopeBytesMax; empty for
  // clients without one.
  std::string cache_scope;
  std::vector<int32_t> prompt;
  uint32_t tokens_max = 128;
  wire::SamplerSettings sampler;

  // At the context's end, half of the positions behind the first `keep_tokens` are dropped and the
  // generation goes on; where the cache cannot do that, and by default, it ends (kLength).
  bool shift_context = false;
  uint32_t keep_tokens = 0;

  std::optional<wire::Speculation> speculation;  // unset: the scheduler's
  std::vector<int32_t> prediction;               // tokens that the output may repeat

  bool no_cache = false;         // nothing of it is taken from caches, nor kept there for others
  bool truncate_prompt = false;  // to the context's length, instead of an error
  bool with_progress = false;    // of the prompt is reported

  // Of a request that was begun elsewhere: the tokens generated there, which are not reported
  // again, and mirostat's running value after each of them. Counted in tokens_max.
  std::vector<int32_t> generated;
  std::vector<float> mirostat_mu;
};

// A stage's time and bytes for the steps with rows of a request, the other requests' rows included.
struct StageTotal {
  uint64_t queue_us = 0;
  uint64_t compute_us = 0;
  uint64_t sample_us = 0;
  uint64_t steps = 0;
  uint64_t bytes_in = 0;  // of frames over the link into the stage
};

// The part of a prompt that has been processed.
struct PromptProgress {
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;  // found in a KV cache
  uint32_t done_tokens = 0;    // those and the ones computed since
};

struct GenerationUsage {
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;             // of the prompt, found in a KV cache
  uint32_t tokens = 0;                    // reported, this time
  uint32_t draft_tokens = 0;              // that stages computed
  uint32_t accepted_tokens = 0;           // of those, right
  int64_t queued_us = 0;                  // until the request had a slot
  int64_t prompt_us = 0;                  // from there to the first token
  int64_t decode_us = 0;                  // from the first token to the last
  std::vector<StageTotal> prompt_stages;  // by stage
  std::vector<StageTotal> decode_stages;
  std::optional<int32_t> end_token;  // that ended the generation; not shown
};

// As people write it: "auto", "off", "ngram", "draft".
const char* SpeculationName(wire::Speculation speculation);
std::optional<wire::Speculation> SpeculationNamed(absl::string_view name);

// The message for a prompt that leaves no room for an answer. Programs recognize its wording.
std::string PromptTooLong(uint64_t prompt_tokens, uint32_t n_ctx);

}  // namespace strata
