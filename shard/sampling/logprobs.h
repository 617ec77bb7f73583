// Log-probabilities of tokens, of the model's own distribution, before any setting changed it, as
// OpenAI's API reports them. Used by the compute thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace strata {

// Not thread-safe.
class Logprobs {
 public:
  // REQUIRES: `logits`, [n_vocab], are numbers, and outlive this.
  explicit Logprobs(absl::Span<const float> logits);

  // Finite, as all peers can read it, also of a token that the model itself forbids.
  float Of(int32_t token) const;
  // The `n` likeliest tokens, the likeliest first; all, where there are fewer.
  std::vector<int32_t> Likeliest(size_t n) const;

 private:
  const absl::Span<const float> logits_;
  double log_sum_ = 0;
};

}  // namespace strata
