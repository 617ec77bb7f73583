// Rows as a table for a terminal, columns padded to the widest.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace strata {

// Characters, not bytes, as far as a terminal's columns go.
size_t TextWidth(absl::string_view text);

// Cells as PrintableText, two spaces between columns, none at the ends of lines. Rows may be
// shorter than the first.
std::string TextTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace strata
