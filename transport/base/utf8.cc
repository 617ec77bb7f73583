#include "transport/base/utf8.h"

#include <utility>

namespace strata {

size_t Utf8CharacterBytes(absl::string_view s) {
  if (s.empty()) return 0;
  auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char c = byte(0);
  if (c < 0x80) return 1;
  const size_t n = c >= 0xC2 && c <= 0xDF   ? 2
                   : c >= 0xE0 && c <= 0xEF ? 3
                   : c >= 0xF0 && c <= 0xF4 ? 4
                                            : 0;
  if (n == 0 || s.size() < n) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (c == 0xE0 && byte(1) < 0xA0) return 0;  // longer than needed
  if (c == 0xED && byte(1) > 0x9F) return 0;  // surrogates
  if (c == 0xF0 && byte(1) < 0x90) return 0;  // longer than needed
  if (c == 0xF4 && byte(1) > 0x8F) return 0;  // beyond U+10FFFF
  return n;
}

size_t UnfinishedUtf8Bytes(absl::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // inside a character
    const size_t bytes = byte >= 0xF0 && byte < 0xF5   ? 4
                         : byte >= 0xE0 && byte < 0xF0 ? 3
                         : byte >= 0xC2 && byte < 0xE0 ? 2
                                                       : 1;
    return bytes > back ? back : 0;
  }
  return 0;
}

std::string ValidUtf8(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t n = Utf8CharacterBytes(text);
    if (n == 0) {
      out.push_back('?');
      text.remove_prefix(1);
    } else {
      out.append(text.substr(0, n));
      text.remove_prefix(n);
    }
  }
  return out;
}

std::string Utf8Stream::Add(absl::string_view piece) {
  std::string text = std::exchange(pending_, {});
  text.append(piece.data(), piece.size());
  const size_t unfinished = UnfinishedUtf8Bytes(text);
  pending_ = text.substr(text.size() - unfinished);
  text.resize(text.size() - unfinished);
  return text;
}

std::string Utf8Stream::Flush() { return std::exchange(pending_, {}); }

}  // namespace strata
