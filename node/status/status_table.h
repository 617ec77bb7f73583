// Text and tables that fit the cells of a terminal: wide characters count two, text that does not
// fit ends in "…". Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "ftxui/dom/elements.hpp"
#include "ftxui/screen/color.hpp"

namespace strata {

// `text` as PrintableText, with spaces for its line ends, cut to at most `cells`.
std::string CutText(absl::string_view text, int cells);

// Printable, and cut or padded to exactly `cells`.
enum class Align { kLeft, kRight };
std::string FitText(absl::string_view text, int cells, Align align = Align::kLeft);

// Printable, broken between words; later lines begin with `indent` spaces. Lines after `lines_max`
// are cut.
struct WrapOptions {
  int cells = 80;
  int indent = 0;
  size_t lines_max = 3;
};
std::vector<std::string> WrapText(absl::string_view text, const WrapOptions& options);

// "███░░░░░", of `cells` cells; `part` is 0 to 1.
std::string BarText(double part, int cells);

struct TableColumn {
  std::string title;
  // Least width if the table is too wide; 0: it cannot be narrowed.
  int cells_min = 0;
  // Dropped if narrowing is not enough, the greatest first; 0: never.
  int drop = 0;
  Align align = Align::kLeft;
};
struct TableCell {
  std::string text;
  ftxui::Color color = ftxui::Color::Default;
};

// A line for the titles and one for each row, none wider than `cells`. Rows may be shorter than
// there are columns.
std::vector<ftxui::Element> TableLines(const std::vector<TableColumn>& columns,
                                       const std::vector<std::vector<TableCell>>& rows, int cells);

}  // namespace strata
