#include "node/status/status_table.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "ftxui/screen/string.hpp"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

constexpr int kGapCells = 2;  // between columns

// Replaces line ends by spaces.
std::string Printable(absl::string_view text) {
  return PrintableText::From(absl::StrReplaceAll(text, {{"\n", " "}}), kShownMessageBytesMax).str();
}

// The widest prefix of `text` that fits, and its width.
std::pair<std::string, int> Beginning(const std::string& text, int cells) {
  std::string kept;
  int width = 0;
  for (const std::string& glyph : ftxui::Utf8ToGlyphs(text)) {
    const int more = ftxui::string_width(glyph);
    if (width + more > cells) break;
    kept += glyph;
    width += more;
  }
  return {std::move(kept), width};
}

struct Column {
  size_t place = 0;  // among all
  int natural = 0, cells = 0;
};

int Width(const std::vector<Column>& kept) {
  int width = kept.empty() ? 0 : kGapCells * (static_cast<int>(kept.size()) - 1);
  for (const Column& column : kept) width += column.cells;
  return width;
}

// Narrows the widest column that may be narrowed, cell by cell; false if that is not enough.
bool Narrow(const std::vector<TableColumn>& columns, bool all, int cells,
            std::vector<Column>* kept) {
  for (int excess = Width(*kept) - cells; excess > 0; --excess) {
    Column* widest = nullptr;
    for (Column& column : *kept) {
      const int least = all                                   ? 1
                        : columns[column.place].cells_min > 0 ? columns[column.place].cells_min
                                                              : column.natural;
      if (column.cells > least && (widest == nullptr || column.cells > widest->cells)) {
        widest = &column;
      }
    }
    if (widest == nullptr) return false;
    --widest->cells;
  }
  return true;
}

std::vector<Column> Layout(const std::vector<TableColumn>& columns,
                           const std::vector<std::vector<TableCell>>& rows, int cells) {
  std::vector<Column> kept;
  for (size_t i = 0; i < columns.size(); ++i) {
    Column column = {.place = i, .natural = ftxui::string_width(columns[i].title)};
    for (const auto& row : rows) {
      if (i >= row.size()) continue;
      column.natural = std::max(column.natural, ftxui::string_width(Printable(row[i].text)));
    }
    kept.push_back(column);
  }
  while (true) {
    for (Column& column : kept) column.cells = column.natural;
    if (Narrow(columns, /*all=*/false, cells, &kept)) return kept;
    const auto last = std::max_element(kept.begin(), kept.end(), [&](const auto& a, const auto& b) {
      return columns[a.place].drop < columns[b.place].drop;
    });
    if (last == kept.end() || columns[last->place].drop == 0) break;
    kept.erase(last);
  }
  while (!Narrow(columns, /*all=*/true, cells, &kept)) kept.pop_back();
  return kept;
}

}  // namespace

std::string CutText(absl::string_view text, int cells) {
  if (cells <= 0) return "";
  std::string cut = Printable(text);
  if (ftxui::string_width(cut) <= cells) return cut;
  return Beginning(cut, cells - 1).first + "…";
}

std::string FitText(absl::string_view text, int cells, Align align) {
  const std::string cut = CutText(text, cells);
  const std::string padding(static_cast<size_t>(std::max(0, cells - ftxui::string_width(cut))),
                            ' ');
  return align == Align::kLeft ? cut + padding : padding + cut;
}

std::vector<std::string> WrapText(absl::string_view text, const WrapOptions& options) {
  std::vector<std::string> lines;
  const std::string indent(static_cast<size_t>(std::max(0, options.indent)), ' ');
  std::string line;
  bool fresh = true;  // nothing but the indent in `line`
  const auto width = [&] { return ftxui::string_width(line); };
  const auto end_line = [&] {
    lines.push_back(line);
    line = indent;
    fresh = true;
  };
  for (const absl::string_view piece : absl::StrSplit(Printable(text), ' ', absl::SkipEmpty())) {
    std::string word(piece);
    if (!fresh && width() + 1 + ftxui::string_width(word) > options.cells) end_line();
    if (!fresh) line += ' ';
    // A word that is longer than a line is broken where it must be.
    while (width() + ftxui::string_width(word) > options.cells) {
      auto [begin, cells] = Beginning(word, options.cells - width());
      if (begin.empty()) break;  // not even one character fits
      line += begin;
      word.erase(0, begin.size());
      end_line();
      if (lines.size() > options.lines_max) break;
    }
    line += word;
    fresh = false;
    if (lines.size() > options.lines_max) break;
  }
  if (!fresh) lines.push_back(line);
  if (lines.size() > options.lines_max) {
    lines.resize(options.lines_max);
    if (!lines.empty()) lines.back() = CutText(lines.back() + " …", options.cells);
  }
  for (std::string& each : lines) each = CutText(each, options.cells);
  return lines;
}

std::string BarText(double part, int cells) {
  const double sane = std::isfinite(part) ? std::clamp(part, 0.0, 1.0) : 0.0;
  const int full = static_cast<int>(std::lround(sane * cells));
  std::string bar;
  for (int i = 0; i < cells; ++i) bar += i < full ? "█" : "░";
  return bar;
}

std::vector<ftxui::Element> TableLines(const std::vector<TableColumn>& columns,
                                       const std::vector<std::vector<TableCell>>& rows, int cells) {
  const std::vector<Column> kept = Layout(columns, rows, cells);
  std::vector<ftxui::Element> lines;
  const auto add_line = [&](auto&& cell_at) {
    ftxui::Elements parts;
    for (const Column& column : kept) {
      if (!parts.empty()) parts.push_back(ftxui::text(std::string(kGapCells, ' ')));
      const TableCell cell = cell_at(column.place);
      parts.push_back(ftxui::text(FitText(cell.text, column.cells, columns[column.place].align)) |
                      ftxui::color(cell.color));
    }
    lines.push_back(ftxui::hbox(std::move(parts)));
  };
  add_line([&](size_t i) { return TableCell{columns[i].title}; });
  lines.back() = lines.back() | ftxui::bold;
  for (const auto& row : rows) {
    add_line([&](size_t i) { return i < row.size() ? row[i] : TableCell{}; });
  }
  return lines;
}

}  // namespace strata
