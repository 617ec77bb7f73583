#include "transport/base/utf8.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(Utf8Stream, HoldsACharacterBackUntilItIsWhole) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Add("na\xc3"), "na");
  EXPECT_EQ(stream.Add("\xafve"), "\xc3\xafve");
  EXPECT_EQ(stream.Add("\xf0\x9f"), "");
  EXPECT_EQ(stream.Add("\x98"), "");
  EXPECT_EQ(stream.Add("\x80!"), "\xf0\x9f\x98\x80!");
  EXPECT_EQ(stream.Flush(), "");
}

TEST(Utf8Stream, GivesEveryByteBackWhereverItIsCut) {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Utf8Stream stream;
    std::string out = stream.Add(text.substr(0, cut));
    out += stream.Add(text.substr(cut));
    EXPECT_EQ(out, text) << "cut at " << cut;
    EXPECT_EQ(stream.Flush(), "");
  }
}

TEST(Utf8Stream, PassesOnInvalidUtf8) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Add("\xff\xfe\x80"), "\xff\xfe\x80");
  EXPECT_EQ(stream.Add("\xe2\x82"), "");
  EXPECT_EQ(stream.Flush(), "\xe2\x82");
}

TEST(ValidUtf8, InvalidBytesAreReplaced) {
  EXPECT_EQ(ValidUtf8("gr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(ValidUtf8("a\xFF"
                      "b"),
            "a?b");
  EXPECT_EQ(ValidUtf8("a\xC3"), "a?");               // cut
  EXPECT_EQ(ValidUtf8("\xC0\x80"), "??");            // longer than needed
  EXPECT_EQ(ValidUtf8("\xED\xA0\x80"), "???");       // surrogate
  EXPECT_EQ(ValidUtf8("\xF4\x90\x80\x80"), "????");  // beyond U+10FFFF
  EXPECT_EQ(ValidUtf8(""), "");
}

}  // namespace
}  // namespace strata
