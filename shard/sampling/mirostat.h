// Mirostat: keeps the surprise of the output near a target by cutting off unlikely tokens at a
// running value, mu. S. Basu et al., "Mirostat: a neural text decoding algorithm that directly
// controls perplexity", ICLR 2021, arXiv 2007.14966. Ours rather than libllama's, because the
// running value must travel with the token so that a sequence can be replayed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace strata {

struct MirostatSettings {
  int version = 2;  // 1: estimates the tail's exponent; 2: cuts at the surprise itself
  float tau = 5;    // target surprise, bits
  float eta = 0.1;  // how fast mu follows
};

// mu before the first token of a sequence.
inline float InitialMu(const MirostatSettings& settings) { return 2 * settings.tau; }

// How many of the candidates to keep, at least one. `probabilities` is [n], falling, and sums to 1;
// `n_vocab` is the size of the whole vocabulary.
size_t MirostatKeep(const MirostatSettings& settings, float mu,
                    absl::Span<const double> probabilities, int32_t n_vocab);

// mu after a token whose probability among those kept was `probability`.
float NextMu(const MirostatSettings& settings, float mu, double probability);

}  // namespace strata
