// Tables on the screen of `strata status`. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "ftxui/dom/elements.hpp"
#include "ftxui/screen/color.hpp"
#include "transport/base/text_table.h"

namespace strata {

struct TableCell {
  std::string text;
  ftxui::Color color = ftxui::Color::Default;
};

// A line for the titles and one for each row, none wider than `cells`. Rows may be shorter than
// there are columns.
std::vector<ftxui::Element> TableLines(const std::vector<TableColumn>& columns,
                                       const std::vector<std::vector<TableCell>>& rows, int cells);

}  // namespace strata
