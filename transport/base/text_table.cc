#include "transport/base/text_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "ftxui/screen/string.hpp"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

std::string Printable(absl::string_view text) {
  return PrintableText::From(absl::StrReplaceAll(text, {{"\n", " "}}), kShownMessageBytesMax).str();
}

// The widest prefix of `text` that fits, and its width.
std::pair<std::string, int> Beginning(const std::string& text, int cells) {
  std::string kept;
  int width = 0;
  for (const std::string& glyph : ftxui::Utf8ToGlyphs(text)) {
    const int more = TextWidth(glyph);
    if (width + more > cells) break;
    kept += glyph;
    width += more;
  }
  return {std::move(kept), width};
}

int Width(const std::vector<TextTable::Shown>& shown) {
  int width = shown.empty() ? 0 : TextTable::kGapCells * (static_cast<int>(shown.size()) - 1);
  for (const TextTable::Shown& column : shown) width += column.cells;
  return width;
}

// Narrows the widest column that may be narrowed, cell by cell; false if that is not enough. `all`:
// each down to one cell.
bool Narrow(const std::vector<TableColumn>& columns, bool all, int cells,
            std::vector<TextTable::Shown>* shown) {
  for (int excess = Width(*shown) - cells; excess > 0; --excess) {
    TextTable::Shown* widest = nullptr;
    for (TextTable::Shown& column : *shown) {
      const int least = all ? 1 : columns[column.place].cells_min;
      const bool may = least > 0 && column.cells > least;
      if (may && (widest == nullptr || column.cells > widest->cells)) widest = &column;
    }
    if (widest == nullptr) return false;
    --widest->cells;
  }
  return true;
}

}  // namespace

int TextWidth(absl::string_view text) { return ftxui::string_width(std::string(text)); }

std::string CutText(absl::string_view text, int cells) {
  if (cells <= 0) return "";
  std::string whole = Printable(text);
  if (TextWidth(whole) <= cells) return whole;
  return Beginning(whole, cells - 1).first + "…";
}

std::string FitText(absl::string_view text, int cells, Align align) {
  const std::string cut = CutText(text, cells);
  const std::string padding(static_cast<size_t>(std::max(0, cells - TextWidth(cut))), ' ');
  return align == Align::kLeft ? cut + padding : padding + cut;
}

std::vector<std::string> WrapText(absl::string_view text, const WrapOptions& options) {
  std::vector<std::string> lines;
  const std::string indent(static_cast<size_t>(std::max(0, options.indent)), ' ');
  std::string line;
  bool fresh = true;  // nothing but the indent in `line`
  const auto width = [&] { return TextWidth(line); };
  const auto end_line = [&] {
    lines.push_back(line);
    line = indent;
    fresh = true;
  };
  for (const absl::string_view piece : absl::StrSplit(Printable(text), ' ', absl::SkipEmpty())) {
    std::string word(piece);
    if (!fresh && width() + 1 + TextWidth(word) > options.cells) end_line();
    if (!fresh) line += ' ';
    // A word that is longer than a line is broken where it must be.
    while (width() + TextWidth(word) > options.cells) {
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

TextTable::TextTable(std::vector<TableColumn> columns, std::vector<std::vector<std::string>> rows)
    : columns_(std::move(columns)), rows_(std::move(rows)) {
  std::vector<std::string>& titles = *rows_.emplace(rows_.begin());
  for (const TableColumn& column : columns_) titles.push_back(column.title);
}

TextTable::TextTable(std::vector<std::vector<std::string>> rows) : rows_(std::move(rows)) {
  if (!rows_.empty()) columns_.resize(rows_.front().size());
}

std::vector<TextTable::Shown> TextTable::Layout() const {
  std::vector<TextTable::Shown> shown;
  for (size_t i = 0; i < columns_.size(); ++i) {
    TextTable::Shown& column = shown.emplace_back(TextTable::Shown{.place = i});
    for (const std::vector<std::string>& row : rows_) {
      if (i < row.size()) column.cells = std::max(column.cells, TextWidth(Printable(row[i])));
    }
  }
  return shown;
}

std::vector<TextTable::Shown> TextTable::Layout(int cells) const {
  std::vector<TextTable::Shown> kept = Layout();
  while (true) {
    std::vector<TextTable::Shown> shown = kept;
    if (Narrow(columns_, /*all=*/false, cells, &shown)) return shown;
    const auto last = std::max_element(kept.begin(), kept.end(), [&](const auto& a, const auto& b) {
      return columns_[a.place].drop < columns_[b.place].drop;
    });
    if (last == kept.end() || columns_[last->place].drop == 0) break;
    kept.erase(last);
  }
  while (!Narrow(columns_, /*all=*/true, cells, &kept)) kept.pop_back();
  return kept;
}

std::string TextTable::Cell(size_t row, const TextTable::Shown& column) const {
  const std::vector<std::string>& cells = rows_[row];
  return FitText(column.place < cells.size() ? cells[column.place] : "", column.cells,
                 columns_[column.place].align);
}

std::string TextTable::Text() const {
  const std::vector<TextTable::Shown> shown = Layout();
  std::string out;
  for (size_t row = 0; row < rows_.size(); ++row) {
    std::string line;
    for (const TextTable::Shown& column : shown) {
      absl::StrAppend(&line, Cell(row, column), std::string(kGapCells, ' '));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

}  // namespace strata
