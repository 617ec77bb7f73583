// The random draw of sampling: a pure function of seed and position, the same on every platform, so
// that a sequence replayed from prompt + tokens so far repeats itself.
//
// Philox4x32-10, a counter-based generator: J. Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace strata {

// One block of the generator.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The purpose of a draw; each has its own sequence of draws.
enum class DrawPurpose : uint32_t { kToken = 0, kXtc = 1 };

struct DrawKey {
  uint64_t seed = 0;
  uint64_t position = 0;  // of the token in its sequence
  DrawPurpose purpose = DrawPurpose::kToken;
};

// Uniform in [0, 1), 53 bits.
double Draw(DrawKey key);

}  // namespace strata
