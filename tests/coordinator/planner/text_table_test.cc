#include "coordinator/planner/text_table.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(TextTable, PadsColumnsToTheWidestAndLinesNotAtAll) {
  EXPECT_EQ(TextTable({{"A", "B", "C"}, {"long", "", "c"}, {"x"}}), "A     B  C\nlong     c\nx\n");
}

TEST(TextTable, CountsCharactersNotBytes) {
  EXPECT_EQ(TextWidth("Küche"), 5u);
  EXPECT_EQ(TextTable({{"Küche", "1"}, {"attic", "2"}}), "Küche  1\nattic  2\n");
}

TEST(TextTable, OfNothingIsNothing) { EXPECT_EQ(TextTable({}), ""); }

}  // namespace
}  // namespace strata
