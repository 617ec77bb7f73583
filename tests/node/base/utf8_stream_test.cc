#include "node/base/utf8_stream.h"

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

}  // namespace
}  // namespace strata
