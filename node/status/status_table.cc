#include "node/status/status_table.h"

#include <utility>

namespace strata {

std::vector<ftxui::Element> TableLines(const std::vector<TableColumn>& columns,
                                       const std::vector<std::vector<TableCell>>& rows, int cells) {
  std::vector<std::vector<std::string>> plain_rows;
  for (const std::vector<TableCell>& row : rows) {
    std::vector<std::string>& added = plain_rows.emplace_back();
    for (const TableCell& cell : row) added.push_back(cell.text);
  }
  const TextTable table(columns, std::move(plain_rows));
  const std::vector<TextTable::Shown> shown = table.Layout(cells);
  std::vector<ftxui::Element> lines;
  for (size_t i = 0; i < table.n_rows(); ++i) {
    ftxui::Elements parts;
    for (const TextTable::Shown& column : shown) {
      if (!parts.empty()) parts.push_back(ftxui::text(std::string(TextTable::kGapCells, ' ')));
      ftxui::Element part = ftxui::text(table.Cell(i, column));
      if (i > 0 && column.place < rows[i - 1].size()) {
        part = part | ftxui::color(rows[i - 1][column.place].color);
      }
      parts.push_back(std::move(part));
    }
    lines.push_back(ftxui::hbox(std::move(parts)));
  }
  lines.front() = lines.front() | ftxui::bold;
  return lines;
}

}  // namespace strata
