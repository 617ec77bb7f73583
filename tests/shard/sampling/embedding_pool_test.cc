#include "shard/sampling/embedding_pool.h"

#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::IsOkAndHolds;
using absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;

// Of three rows.
std::vector<float> Pooled(wire::Pooling pooling) {
  const std::vector<std::vector<float>> states = {{3, 0}, {0, 1}, {0, 3}};
  EmbeddingPool pool(pooling);
  for (int32_t i = 0; i < 3; ++i) {
    if (!pool.Takes(i, /*is_last=*/i == 2)) continue;
    EXPECT_THAT(pool.Add(i, states[i]), IsOk());
  }
  return pool.Embedding().value_or(std::vector<float>());
}

TEST(EmbeddingPool, IsOfLengthOne) {
  EXPECT_THAT(Pooled(wire::POOLING_MEAN), ElementsAre(FloatEq(0.6f), FloatEq(0.8f)));
  EXPECT_THAT(Pooled(wire::POOLING_CLS), ElementsAre(1, 0));
  EXPECT_THAT(Pooled(wire::POOLING_LAST), ElementsAre(0, 1));
}

TEST(EmbeddingPool, OfZerosIsZeros) {
  EmbeddingPool pool(wire::POOLING_MEAN);
  EXPECT_THAT(pool.Add(0, std::vector<float>{0, 0}), IsOk());
  EXPECT_THAT(pool.Embedding(), IsOkAndHolds(ElementsAre(0, 0)));
}

TEST(EmbeddingPool, OfRowsOutOfOrderIsAnError) {
  EmbeddingPool mean(wire::POOLING_MEAN);
  EXPECT_THAT(mean.Add(2, std::vector<float>{1}), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                           HasSubstr("of 0 rows gets the row 2")));
  EmbeddingPool last(wire::POOLING_LAST);
  EXPECT_THAT(last.Add(5, std::vector<float>{1}), IsOk());
  EXPECT_THAT(last.Add(6, std::vector<float>{1}), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(EmbeddingPool, WithoutItsRowsIsAnError) {
  EXPECT_THAT(EmbeddingPool(wire::POOLING_CLS).Embedding(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("lacks its rows")));
}

}  // namespace
}  // namespace strata
