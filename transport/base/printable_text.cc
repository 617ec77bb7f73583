#include "transport/base/printable_text.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "transport/base/utf8.h"

namespace strata {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr absl::string_view kEllipsis = "\xE2\x80\xA6";     // U+2026

struct Range {
  uint32_t first, last;
};

// Sorted. The control characters (Cc), the separators of lines and paragraphs (Zl, Zp), the
// invisible format characters (Cf but for the visible signs among them, as U+0600) and all of
// Default_Ignorable_Code_Point of Unicode 16, assigned or not.
constexpr Range kInvisible[] = {
    {0x0000, 0x001F},    // C0
    {0x007F, 0x009F},    // DEL, C1
    {0x00AD, 0x00AD},    // soft hyphen
    {0x034F, 0x034F},    // combining grapheme joiner
    {0x061C, 0x061C},    // Arabic letter mark
    {0x115F, 0x1160},    // Hangul fillers
    {0x17B4, 0x17B5},    // Khmer inherent vowels
    {0x180B, 0x180F},    // Mongolian selectors and vowel separator
    {0x200B, 0x200F},    // zero-width, left-to-right and right-to-left marks
    {0x2028, 0x202E},    // separators, bidi embeddings and overrides
    {0x2060, 0x206F},    // word joiner, invisible operators, bidi isolates, deprecated
    {0x3164, 0x3164},    // Hangul filler
    {0xFE00, 0xFE0F},    // variation selectors
    {0xFEFF, 0xFEFF},    // byte order mark
    {0xFFA0, 0xFFA0},    // halfwidth Hangul filler
    {0xFFF0, 0xFFFB},    // reserved, interlinear annotation
    {0x13430, 0x1343F},  // Egyptian format controls
    {0x1BCA0, 0x1BCA3},  // shorthand format controls
    {0x1D173, 0x1D17A},  // musical format controls
    {0xE0000, 0xE0FFF},  // tags, variation selectors, reserved
};

bool IsInvisible(uint32_t c) {
  const Range* range =
      std::ranges::lower_bound(kInvisible, c, {}, [](const Range& each) { return each.last; });
  return range != std::end(kInvisible) && range->first <= c;
}

bool IsNoncharacter(uint32_t c) { return (c >= 0xFDD0 && c <= 0xFDEF) || (c & 0xFFFE) == 0xFFFE; }

// REQUIRES: `bytes` is one character of valid UTF-8.
uint32_t CharacterOf(absl::string_view bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  if (bytes.size() == 1) return first;
  uint32_t c = first & (0x7Fu >> bytes.size());
  for (char byte : bytes.substr(1)) c = c << 6 | (static_cast<unsigned char>(byte) & 0x3F);
  return c;
}

std::string EscapeOf(uint32_t c) {
  switch (c) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return c > 0xFFFF ? absl::StrFormat("\\U%08x", c) : absl::StrFormat("\\u%04x", c);
  }
}

// Calls `take` with the shown form of each character of `bytes` until it returns false. Returns
// whether the end was reached.
template <typename Take>
bool Show(absl::string_view bytes, bool keep_line_feeds, Take take) {
  bool after_shown = false;  // behind a character that is not ASCII and is shown as it is
  while (!bytes.empty()) {
    const size_t n = Utf8CharacterBytes(bytes);
    const absl::string_view character = bytes.substr(0, std::max<size_t>(n, 1));
    bytes.remove_prefix(character.size());
    const uint32_t c = n == 0 ? 0 : CharacterOf(character);
    const bool selects = after_shown && (c == 0xFE0E || c == 0xFE0F);
    after_shown = false;
    if (n == 0 || IsNoncharacter(c)) {
      if (!take(kReplacement)) return false;
    } else if (IsInvisible(c) && !selects && !(keep_line_feeds && c == '\n')) {
      if (!take(EscapeOf(c))) return false;
    } else {
      after_shown = n > 1 && !selects;
      if (!take(character)) return false;
    }
  }
  return true;
}

std::string Shown(absl::string_view bytes, size_t bytes_max, bool keep_line_feeds) {
  std::string text;
  text.reserve(std::min(bytes.size(), bytes_max));
  // The last place where the text can be cut if it turns out not to fit.
  const size_t cut_max = bytes_max < kEllipsis.size() ? 0 : bytes_max - kEllipsis.size();
  size_t cut = 0;
  const bool complete = Show(bytes, keep_line_feeds, [&](absl::string_view piece) {
    if (text.size() + piece.size() > bytes_max) return false;
    text += piece;
    if (text.size() <= cut_max) cut = text.size();
    return true;
  });
  if (complete) return text;
  text.resize(cut);
  if (bytes_max >= kEllipsis.size()) text += kEllipsis;
  return text;
}

}  // namespace

PrintableText PrintableText::From(absl::string_view bytes, size_t bytes_max) {
  return PrintableText(Shown(bytes, bytes_max, /*keep_line_feeds=*/false));
}

std::string PrintableLines(absl::string_view bytes, size_t bytes_max) {
  return Shown(bytes, bytes_max, /*keep_line_feeds=*/true);
}

bool IsPrintable(absl::string_view text) {
  size_t shown = 0;
  const bool same = Show(text, /*keep_line_feeds=*/false, [&](absl::string_view piece) {
    const bool here = text.substr(shown, piece.size()) == piece;
    shown += piece.size();
    return here;
  });
  return same && shown == text.size();
}

}  // namespace strata
