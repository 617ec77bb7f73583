// The log-probabilities of a prompt's tokens, on the last stage, collected over the steps that feed
// it. Used by the compute thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/frame.pb.h"

struct llama_vocab;

namespace strata {

// Tokens of one prompt that are reported at most, with the likeliest ones at each place: as many as
// go into one result with those of other sequences.
inline constexpr uint64_t kPromptScoresMax = 1 << 17;

// Not thread-safe.
class PromptScores {
 public:
  // `n_top`: likeliest tokens to report at each place. `vocab` outlives this.
  PromptScores(absl::Span<const int32_t> prompt, uint32_t n_top, const llama_vocab* vocab);

  // kInvalidArgument: kPromptScoresMax is exceeded.
  absl::Status Check() const;
  // The row at `position` was fed; `logits`, [n_vocab], are of what follows it. Rows come in order,
  // all but the prompt's last. kFailedPrecondition: one was left out; kInternal: they are no
  // numbers.
  absl::Status Add(int32_t position, absl::Span<const float> logits);
  // kFailedPrecondition: rows are missing.
  absl::Status MoveTo(wire::SampledToken* token);

 private:
  wire::TokenLogprob Token(int32_t token) const;

  std::vector<int32_t> prompt_;
  uint32_t n_top_;
  const llama_vocab* vocab_;
  std::vector<wire::PromptToken> scored_;
};

}  // namespace strata
