// Text and tables for a terminal, aligned by the cells that its characters take: wide ones (CJK,
// emoji) take two. All text comes out as PrintableText, with spaces for its line ends. Pure; any
// thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace strata {

// The cells of `text`.
int TextWidth(absl::string_view text);

// `text`, cut to at most `cells`: one that does not fit ends in "…".
std::string CutText(absl::string_view text, int cells);

// Cut or padded to exactly `cells`.
enum class Align { kLeft, kRight };
std::string FitText(absl::string_view text, int cells, Align align = Align::kLeft);

// Broken between words; later lines begin with `indent` spaces. Lines after `lines_max`
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

// Rows under titles, with two spaces between columns.
class TextTable {
 public:
  // Rows may be shorter than there are columns.
  TextTable(std::vector<TableColumn> columns, std::vector<std::vector<std::string>> rows);
  // The first row has the titles.
  explicit TextTable(std::vector<std::vector<std::string>> rows);

  static constexpr int kGapCells = 2;

  // A column that is shown, and its width.
  struct Shown {
    size_t place = 0;  // among all
    int cells = 0;
  };
  // All columns at the width of their widest cell; or narrowed or dropped, so that no line is wider
  // than `cells`.
  std::vector<Shown> Layout() const;
  std::vector<Shown> Layout(int cells) const;
  // The cell of `row` in a column, fitted; row 0 is that of the titles.
  std::string Cell(size_t row, const Shown& column) const;
  size_t n_rows() const { return rows_.size(); }

  // All lines at their full width, with their ends and no spaces before these. Empty: no columns.
  std::string Text() const;

 private:
  std::vector<TableColumn> columns_;
  std::vector<std::vector<std::string>> rows_;  // the titles first
};

}  // namespace strata
