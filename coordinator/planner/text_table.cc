#include "coordinator/planner/text_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "transport/base/printable_text.h"

namespace strata {

size_t TextWidth(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string TextTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::vector<std::string>> shown = rows;
  for (auto& row : shown) {
    for (std::string& cell : row) cell = PrintableText::From(cell, kShownMessageBytesMax).str();
  }
  std::vector<size_t> widths;
  for (const auto& row : shown) {
    if (row.size() > widths.size()) widths.resize(row.size());
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], TextWidth(row[i]));
  }
  std::string out;
  for (const auto& row : shown) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - TextWidth(row[i]) + 2, ' '));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

}  // namespace strata
