#include "shard/sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace strata {

Logprobs::Logprobs(absl::Span<const float> logits) : logits_(logits) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  log_sum_ = largest + std::log(sum);
}

float Logprobs::Of(int32_t token) const {
  return std::max(static_cast<float>(logits_[token] - log_sum_),
                  std::numeric_limits<float>::lowest());
}

std::vector<int32_t> Logprobs::Likeliest(size_t n) const {
  if (n == 0) return {};
  std::vector<int32_t> tokens(logits_.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  n = std::min(n, tokens.size());
  std::partial_sort(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(n), tokens.end(),
                    [this](int32_t a, int32_t b) {
                      return logits_[a] > logits_[b] || (logits_[a] == logits_[b] && a < b);
                    });
  tokens.resize(n);
  return tokens;
}

}  // namespace strata
