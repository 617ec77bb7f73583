#include "transport/base/text_table.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;

using Rows = std::vector<std::vector<std::string>>;

TEST(CutText, HasNoControlCharacters) {
  EXPECT_EQ(CutText("a\x1b[31mb\nc\u202e", 80), "a\\u001b[31mb c\\u202e");
}

TEST(FitText, TakesExactlyItsCells) {
  EXPECT_EQ(FitText("abc", 5), "abc  ");
  EXPECT_EQ(FitText("abc", 5, Align::kRight), "  abc");
  EXPECT_EQ(FitText("abcdef", 4), "abc…");
  EXPECT_EQ(FitText("日本語", 6), "日本語");
  EXPECT_EQ(FitText("日本語", 5), "日本…");
  EXPECT_EQ(FitText("日本語", 4), "日… ");  // half a character is none
  EXPECT_EQ(FitText("abc", 1), "…");
  EXPECT_EQ(FitText("abc", 0), "");
}

TEST(WrapText, BreaksBetweenWords) {
  EXPECT_THAT(WrapText("! the quick brown fox", {.cells = 11, .indent = 2, .lines_max = 9}),
              ElementsAre("! the quick", "  brown fox"));
}

TEST(WrapText, BreaksWordsThatAreLongerThanALine) {
  EXPECT_THAT(WrapText("ab cdefghij k", {.cells = 5, .indent = 1, .lines_max = 9}),
              ElementsAre("ab", " cdef", " ghij", " k"));
  EXPECT_THAT(WrapText("日本語", {.cells = 5, .lines_max = 9}), ElementsAre("日本", "語"));
}

TEST(WrapText, CutsTooManyLines) {
  EXPECT_THAT(WrapText("a b c d e f", {.cells = 3, .lines_max = 2}), ElementsAre("a b", "c …"));
  EXPECT_THAT(WrapText(std::string(100'000, 'x'), {.cells = 4, .lines_max = 2}),
              ElementsAre("xxxx", "xxx…"));
  for (int cells = 1; cells < 4; ++cells) {
    for (const std::string& line : WrapText("日本 x", {.cells = cells, .indent = 2})) {
      EXPECT_LE(TextWidth(line), cells);
    }
  }
}

TEST(BarText, IsFullAsFarAsThePart) {
  EXPECT_EQ(BarText(0.5, 4), "██░░");
  EXPECT_EQ(BarText(2, 2), "██");
  EXPECT_EQ(BarText(-1, 2), "░░");
  EXPECT_EQ(BarText(std::nan(""), 2), "░░");
}

TEST(TextWidth, IsInCells) {
  EXPECT_EQ(TextWidth("Küche"), 5);
  EXPECT_EQ(TextWidth("台所"), 4);
  EXPECT_EQ(TextWidth("🍳"), 2);
  EXPECT_EQ(TextWidth("e\u0301"), 1);  // the accent is on the letter
}

TEST(TextTable, PadsColumnsToTheWidestAndLinesNotAtAll) {
  EXPECT_EQ(TextTable(Rows{{"A", "B", "C"}, {"long", "", "c"}, {"x"}}).Text(),
            "A     B  C\nlong     c\nx\n");
}

TEST(TextTable, AlignsWideCharacters) {
  EXPECT_EQ(TextTable(Rows{{"Küche", "1"}, {"台所", "2"}, {"🍳", "3"}, {"attic", "4"}}).Text(),
            "Küche  1\n台所   2\n🍳     3\nattic  4\n");
}

TEST(TextTable, ARowIsOneLineWithoutControlCharacters) {
  EXPECT_EQ(TextTable(Rows{{"A", "B"}, {"a\nb\x1b", "c"}}).Text(), "A          B\na b\\u001b  c\n");
}

TEST(TextTable, OfNothingIsNothing) { EXPECT_EQ(TextTable(Rows()).Text(), ""); }

TEST(TextTable, AlignsNumbersRight) {
  const TextTable table({{.title = "NODE"}, {.title = "MB", .align = Align::kRight}},
                        Rows{{"attic", "5"}, {"bath", "12345"}});
  EXPECT_EQ(table.Text(), "NODE      MB\nattic      5\nbath   12345\n");
}

}  // namespace
}  // namespace strata
