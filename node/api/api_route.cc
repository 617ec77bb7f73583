#include "node/api/api_route.h"

#include "absl/strings/escaping.h"
#include "absl/strings/strip.h"

namespace strata {

std::string RestOfPath(absl::string_view path, absl::string_view prefix) {
  const absl::string_view text = absl::StripPrefix(path, prefix);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string byte;
    if (text[i] == '%' && i + 2 < text.size() &&
        absl::HexStringToBytes(text.substr(i + 1, 2), &byte)) {
      out += byte;
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace strata
