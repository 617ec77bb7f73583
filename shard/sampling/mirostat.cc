#include "shard/sampling/mirostat.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace strata {
namespace {

// The paper's m: how many of the likeliest tokens the exponent is estimated from.
constexpr size_t kEstimateTokens = 100;

// The k of top-k that gives surprise `mu` if the probabilities follow Zipf's law; equations 30 and
// 31 and algorithm 1 of the paper.
double EstimateK(float mu, absl::Span<const double> probabilities, int32_t n_vocab) {
  double sum_tb = 0;
  double sum_tt = 0;
  const size_t m = std::min(kEstimateTokens, probabilities.size());
  for (size_t i = 0; i + 1 < m && probabilities[i + 1] > 0; ++i) {
    const double t = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    const double b = std::log(probabilities[i] / probabilities[i + 1]);
    sum_tb += t * b;
    sum_tt += t * t;
  }
  if (sum_tt == 0) return 1;
  const double s = sum_tb / sum_tt;
  const double epsilon = s - 1;
  return std::pow(epsilon * std::exp2(mu) / (1 - std::pow(n_vocab, -epsilon)), 1 / s);
}

}  // namespace

size_t MirostatKeep(const MirostatSettings& settings, float mu,
                    absl::Span<const double> probabilities, int32_t n_vocab) {
  if (settings.version == 1) {
    const double k = EstimateK(mu, probabilities, n_vocab);
    // A flat distribution has no exponent (s = 0 or 1): nothing is cut then.
    if (!std::isfinite(k)) return probabilities.size();
    return static_cast<size_t>(std::clamp(k, 1.0, static_cast<double>(probabilities.size())));
  }
  const auto cut = std::find_if(probabilities.begin(), probabilities.end(),
                                [mu](double p) { return -std::log2(p) > mu; });
  return std::max<size_t>(1, cut - probabilities.begin());
}

float NextMu(const MirostatSettings& settings, float mu, double probability) {
  const double surprise = -std::log2(probability);
  return static_cast<float>(mu - settings.eta * (surprise - settings.tau));
}

}  // namespace strata
