#include "node/status/status_table.h"

#include <cmath>
#include <string>
#include <vector>

#include "ftxui/dom/node.hpp"
#include "ftxui/screen/screen.hpp"
#include "ftxui/screen/string.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Drawn(const std::vector<ftxui::Element>& lines, int cells) {
  std::vector<std::string> drawn;
  for (const ftxui::Element& line : lines) {
    ftxui::Screen screen(cells, 1);
    ftxui::Render(screen, line);
    std::string text;
    for (int x = 0; x < cells; ++x) text += screen.PixelAt(x, 0).character;
    while (!text.empty() && text.back() == ' ') text.pop_back();
    drawn.push_back(text);
    EXPECT_LE(line->requirement().min_x, cells);
  }
  return drawn;
}

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
      EXPECT_LE(ftxui::string_width(line), cells);
    }
  }
}

TEST(BarText, IsFullAsFarAsThePart) {
  EXPECT_EQ(BarText(0.5, 4), "██░░");
  EXPECT_EQ(BarText(2, 2), "██");
  EXPECT_EQ(BarText(-1, 2), "░░");
  EXPECT_EQ(BarText(std::nan(""), 2), "░░");
}

const std::vector<TableColumn>& Columns() {
  static const auto* const columns = new std::vector<TableColumn>{
      {.title = "NODE", .cells_min = 4},
      {.title = "MB", .drop = 1, .align = Align::kRight},
      {.title = "STATE"},
  };
  return *columns;
}

TEST(TableLines, AlignsColumns) {
  EXPECT_THAT(Drawn(TableLines(Columns(), {{{"kitchen"}, {"12"}, {"alive"}}, {{"日本"}}}, 40), 40),
              ElementsAre("NODE     MB  STATE", "kitchen  12  alive", "日本"));
}

TEST(TableLines, NarrowsColumnsThenDropsThem) {
  const std::vector<std::vector<TableCell>> rows = {{{"kitchen"}, {"12"}, {"alive"}}};
  EXPECT_THAT(Drawn(TableLines(Columns(), rows, 16), 16),
              ElementsAre("NODE   MB  STATE", "kitc…  12  alive"));
  EXPECT_THAT(Drawn(TableLines(Columns(), rows, 14), 14),
              ElementsAre("NODE     STATE", "kitchen  alive"));
  EXPECT_THAT(Drawn(TableLines(Columns(), rows, 11), 11),
              ElementsAre("NODE  STATE", "kit…  alive"));
}

TEST(TableLines, FitsIntoAnyWidth) {
  const std::vector<std::vector<TableCell>> rows = {{{"kitchen"}, {"12"}, {"alive"}}};
  for (int cells = 1; cells < 20; ++cells) Drawn(TableLines(Columns(), rows, cells), cells);
}

}  // namespace
}  // namespace strata
