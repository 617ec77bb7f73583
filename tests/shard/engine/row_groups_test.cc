#include "shard/engine/row_groups.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(EqualGroups, OneSequenceIsOneGroup) {
  EXPECT_THAT(EqualGroups({3, 3, 3}), ElementsAre(ElementsAre(0, 1, 2)));
}

TEST(EqualGroups, DecodesOfSeveralSequencesAreOneGroupInOrderOfSlots) {
  EXPECT_THAT(EqualGroups({2, 0, 5}), ElementsAre(ElementsAre(1, 0, 2)));
}

TEST(EqualGroups, ShortestSequenceEndsAGroup) {
  EXPECT_THAT(EqualGroups({1, 0, 1, 1}), ElementsAre(ElementsAre(1, 0), ElementsAre(2, 3)));
  EXPECT_THAT(EqualGroups({0, 1, 0, 1, 0, 2}),
              ElementsAre(ElementsAre(0, 1, 5), ElementsAre(2, 3), ElementsAre(4)));
}

TEST(EqualGroups, NoRowsAreNoGroups) { EXPECT_THAT(EqualGroups({}), IsEmpty()); }

}  // namespace
}  // namespace strata
