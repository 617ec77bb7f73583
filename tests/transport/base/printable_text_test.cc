#include "transport/base/printable_text.h"

#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

std::string Shown(absl::string_view bytes) { return PrintableText::From(bytes, 1000).str(); }

// `c` as UTF-8, whatever the character is.
std::string Utf8(uint32_t c) {
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  std::string tail;
  uint32_t first_max = 0x1F, mark = 0xC0;
  do {
    tail.insert(tail.begin(), static_cast<char>(0x80 | (c & 0x3F)));
    c >>= 6;
    if (c <= first_max) break;
    first_max >>= 1;
    mark = mark >> 1 | 0x80;
  } while (true);
  return std::string(1, static_cast<char>(mark | c)) + tail;
}

TEST(PrintableText, OrdinaryTextIsLeftAsItIs) {
  for (const char* text :
       {"", " ", "Strata demo", "Käse 日本 한국어 עברית العربية हिन्दी", "🦙 ⚡️ ❤️", "a\\nb", "C:\\x",
        "\"quoted\" <b>'&'", "\u00a0\u2009\u3000", "\ufffd", "\ue0b0", "e\u0301"}) {
    EXPECT_EQ(Shown(text), text);
    EXPECT_TRUE(IsPrintable(text)) << text;
  }
}

TEST(PrintableText, BytesThatAreNotUtf8BecomeReplacementCharacters) {
  EXPECT_EQ(Shown("Mod\xe8le fran\xe7"
                  "ais"),
            "Mod\ufffdle fran\ufffd"
            "ais");
  EXPECT_EQ(Shown("\xc3"), "\ufffd");                                // cut
  EXPECT_EQ(Shown("\xc0\xaf"), "\ufffd\ufffd");                      // longer than needed
  EXPECT_EQ(Shown("\xe0\x80\x80"), "\ufffd\ufffd\ufffd");            // the same
  EXPECT_EQ(Shown("\xed\xa0\xbd"), "\ufffd\ufffd\ufffd");            // half a surrogate pair
  EXPECT_EQ(Shown("\xf4\x90\x80\x80"), "\ufffd\ufffd\ufffd\ufffd");  // beyond U+10FFFF
  EXPECT_EQ(Shown("\xf8\x88\x80\x80\x80z"), "\ufffd\ufffd\ufffd\ufffd\ufffdz");
  EXPECT_EQ(Shown("\x80"), "\ufffd");
  EXPECT_FALSE(IsPrintable("\xe8"));
}

TEST(PrintableText, NoncharactersBecomeReplacementCharacters) {
  for (uint32_t c : {0xFDD0u, 0xFDEFu, 0xFFFEu, 0xFFFFu, 0x1FFFEu, 0x10FFFFu}) {
    EXPECT_EQ(Shown(Utf8(c)), "\ufffd") << std::hex << c;
  }
}

TEST(PrintableText, ControlCharactersBecomeEscapes) {
  EXPECT_EQ(Shown("\x1b[31mred\x1b[0m\nforged\r\t"), "\\u001b[31mred\\u001b[0m\\nforged\\r\\t");
  EXPECT_EQ(Shown(absl::string_view("a\0b", 3)), "a\\u0000b");
  for (uint32_t c = 0; c < 0xA0; ++c) {
    if (c >= 0x20 && c < 0x7F) continue;
    const std::string shown = Shown(Utf8(c));
    EXPECT_THAT(shown, ::testing::StartsWith("\\")) << c;
    EXPECT_TRUE(IsPrintable(shown)) << c;
  }
}

TEST(PrintableText, InvisibleCharactersAndThoseThatTurnTheTextBecomeEscapes) {
  for (uint32_t c :
       {0xADu,   0x34Fu,  0x61Cu,   0x115Fu,  0x17B4u,  0x180Eu,  0x200Bu,  0x200Cu,
        0x200Du, 0x200Eu, 0x200Fu,  0x2028u,  0x2029u,  0x202Au,  0x202Eu,  0x2060u,
        0x2064u, 0x2066u, 0x2069u,  0x206Fu,  0x3164u,  0xFE00u,  0xFE0Fu,  0xFEFFu,
        0xFFA0u, 0xFFF9u, 0x1D173u, 0xE0001u, 0xE0041u, 0xE007Fu, 0xE0100u, 0xE0FFFu}) {
    const std::string text = "a" + Utf8(c) + "b";
    EXPECT_THAT(Shown(text), ::testing::MatchesRegex("a\\\\[uU][0-9a-f]*b")) << std::hex << c;
    EXPECT_FALSE(IsPrintable(text)) << std::hex << c;
  }
  EXPECT_EQ(Shown("\u202egnp.exe"), "\\u202egnp.exe");
  EXPECT_EQ(Shown("\U000e0041"), "\\U000e0041");
}

TEST(PrintableText, OneVariationSelectorStaysWithItsCharacter) {
  EXPECT_EQ(Shown("\u26a1\ufe0f"), "\u26a1\ufe0f");
  EXPECT_EQ(Shown("\u26a1\ufe0f\ufe0f"), "\u26a1\ufe0f\\ufe0f");
  EXPECT_EQ(Shown("a\ufe0f"), "a\\ufe0f");
  EXPECT_EQ(Shown("\xe8\ufe0f"), "\ufffd\\ufe0f");
}

TEST(PrintableText, NeighboursOfEscapedCharactersStay) {
  for (uint32_t c : {0x20u,   0x7Eu,   0xA0u,    0xACu,    0xAEu,    0x200Au,  0x2010u,  0x2027u,
                     0x202Fu, 0x205Fu, 0x2070u,  0x3163u,  0xFDCFu,  0xFDF0u,  0xFE10u,  0xFF9Fu,
                     0xFFFCu, 0xFFFDu, 0x1342Fu, 0x1D172u, 0xDFFFDu, 0xE1000u, 0x10FFFDu}) {
    EXPECT_EQ(Shown(Utf8(c)), Utf8(c)) << std::hex << c;
  }
}

TEST(PrintableText, IsCutBetweenCharacters) {
  EXPECT_EQ(PrintableText::From("abcdef", 6).str(), "abcdef");
  EXPECT_EQ(PrintableText::From("abcdefg", 6).str(), "abc…");
  EXPECT_EQ(PrintableText::From("äöüäöü", 12).str(), "äöüäöü");
  EXPECT_EQ(PrintableText::From("äöüäöüä", 12).str(), "äöüä…");
  EXPECT_EQ(PrintableText::From("a\x1b\x1b", 8).str(), "a…");  // no half escape
  EXPECT_EQ(PrintableText::From("abc", 2).str(), "");
  EXPECT_EQ(PrintableText::From("abcd", 3).str(), "…");
  EXPECT_EQ(PrintableText::From("a", 0).str(), "");
  for (size_t max = 0; max < 40; ++max) {
    const std::string cut = PrintableText::From("ab\x1b日本\xff\u202e⚡️xyz 123", max).str();
    EXPECT_LE(cut.size(), max);
    EXPECT_TRUE(IsPrintable(cut)) << cut;
    EXPECT_EQ(PrintableText::From(cut, max).str(), cut);
  }
}

TEST(PrintableText, LinesStayWhereTheyMay) {
  EXPECT_EQ(PrintableLines("one\n\x1b[2Jtwo\r\n"), "one\n\\u001b[2Jtwo\\r\n");
  EXPECT_EQ(PrintableText::From(PrintableLines("one\ntwo")).str(), "one\\ntwo");
}

TEST(PrintableText, ComparesAndIsWrittenLikeText) {
  const PrintableText name = PrintableText::From("a\n");
  EXPECT_EQ(name, "a\\n");
  EXPECT_EQ(name, PrintableText::From("a\n"));
  EXPECT_LT(name, PrintableText::From("b"));
  EXPECT_EQ(absl::StrCat("<", name, ">"), "<a\\n>");
  std::ostringstream out;
  out << name;
  EXPECT_EQ(out.str(), "a\\n");
  EXPECT_TRUE(PrintableText().empty());
}

}  // namespace
}  // namespace strata
