#include "node/status/status_table.h"

#include <string>
#include <vector>

#include "ftxui/dom/node.hpp"
#include "ftxui/screen/screen.hpp"
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
