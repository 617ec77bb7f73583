#include "shard/sampling/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <set>

#include "gtest/gtest.h"

namespace strata {
namespace {

// Known answers of the authors' library, Random123.
TEST(Philox, GivesTheKnownAnswers) {
  using Block = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// A sequence draws the same when another version replays it.
TEST(Draw, ValuesNeverChange) {
  EXPECT_EQ(Draw({.seed = 0, .position = 0}), 0x1.989fa35785a70p-2);
  EXPECT_NE(Draw({.seed = 0, .position = 0}), Draw({.seed = 1, .position = 0}));
  EXPECT_NE(Draw({.seed = 0, .position = 0}), Draw({.seed = uint64_t{1} << 32, .position = 0}));
  EXPECT_NE(Draw({.seed = 0, .position = 0}),
            Draw({.seed = 0, .position = 0, .purpose = DrawPurpose::kXtc}));
}

TEST(Draw, LiesBelowOneAndIsUniform) {
  constexpr int kBins = 64;
  constexpr int kDraws = 64000;
  for (uint64_t seed : {0ull, 7ull, 0xFFFFFFFFFFFFFFFFull}) {
    std::array<int, kBins> counts = {};
    for (uint64_t position = 0; position < kDraws; ++position) {
      const double draw = Draw({.seed = seed, .position = position});
      ASSERT_GE(draw, 0);
      ASSERT_LT(draw, 1);
      ++counts[static_cast<size_t>(draw * kBins)];
    }
    double chi_square = 0;
    for (int count : counts) chi_square += std::pow(count - kDraws / kBins, 2) / (kDraws / kBins);
    EXPECT_LT(chi_square, 114) << "seed " << seed;  // 63 degrees of freedom: 1 in 10000 above
  }
}

TEST(Draw, NeighboursShareNothing) {
  std::set<double> draws;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (uint64_t position = 0; position < 100; ++position) {
      draws.insert(Draw({.seed = seed, .position = position}));
    }
  }
  EXPECT_EQ(draws.size(), 10000u);
}

}  // namespace
}  // namespace strata
