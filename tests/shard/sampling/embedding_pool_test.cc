#include "shard/sampling/embedding_pool.h"

#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;

std::vector<float> Pooled(wire::Pooling pooling) {
  EmbeddingPool pool(pooling);
  EXPECT_THAT(pool.Add(0, std::vector<float>{3, 0}), IsOk());
  EXPECT_THAT(pool.Add(1, std::vector<float>{0, 4}), IsOk());
  return pool.Embedding();
}

TEST(EmbeddingPool, IsOfLengthOne) {
  EXPECT_THAT(Pooled(wire::POOLING_MEAN), ElementsAre(FloatEq(0.6f), FloatEq(0.8f)));
  EXPECT_THAT(Pooled(wire::POOLING_CLS), ElementsAre(1, 0));
  EXPECT_THAT(Pooled(wire::POOLING_LAST), ElementsAre(0, 1));
}

TEST(EmbeddingPool, OfZerosIsZeros) {
  EmbeddingPool pool(wire::POOLING_MEAN);
  EXPECT_THAT(pool.Add(0, std::vector<float>{0, 0}), IsOk());
  EXPECT_THAT(pool.Embedding(), ElementsAre(0, 0));
}

TEST(EmbeddingPool, NoRowMayBeLeftOutButForTheLast) {
  for (const wire::Pooling pooling : {wire::POOLING_MEAN, wire::POOLING_CLS}) {
    EmbeddingPool pool(pooling);
    EXPECT_TRUE(pool.takes_every_row());
    EXPECT_THAT(pool.Add(1, std::vector<float>{1}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("from 0 to 1")));
  }
  EmbeddingPool last(wire::POOLING_LAST);
  EXPECT_FALSE(last.takes_every_row());
  EXPECT_THAT(last.Add(7, std::vector<float>{2}), IsOk());
  EXPECT_THAT(last.Embedding(), ElementsAre(1));
}

}  // namespace
}  // namespace strata
