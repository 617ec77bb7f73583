#include "transport/security/secret_text.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr SecretKind kKind = {.name = "thing", .prefix = "thing-1-", .example = "ask for one"};

SecretBytes Counting() {
  SecretBytes bytes(new std::array<uint8_t, kSecretBytes>{});
  for (size_t i = 0; i < kSecretBytes; ++i) (*bytes)[i] = static_cast<uint8_t>(i * 7 + 1);
  return bytes;
}

std::string Text() { return SecretToText(kKind, Counting()).Reveal(); }

TEST(SecretText, IsGroupsOfFourOfAnAlphabetThatIsReadAloud) {
  EXPECT_THAT(Text(), MatchesRegex("thing-1-([0-9abcdefghjkmnpqrstvwxyz]{4}-){13}"
                                   "[0-9abcdefghjkmnpqrstvwxyz]{4}"));
}

TEST(SecretText, ComesBackHoweverItWasTyped) {
  const std::string text = Text();
  const std::string symbols = text.substr(kKind.prefix.size());
  for (const std::string& typed :
       {text, absl::AsciiStrToUpper(text), " " + text + "\r\n",
        absl::StrCat(kKind.prefix, absl::StrReplaceAll(symbols, {{"-", ""}})),
        absl::StrCat(kKind.prefix, absl::StrReplaceAll(symbols, {{"-", " "}})),
        absl::StrCat(kKind.prefix, absl::StrReplaceAll(symbols, {{"0", "O"}, {"1", "l"}})),
        absl::StrCat(kKind.prefix, absl::StrReplaceAll(symbols, {{"0", "o"}, {"1", "I"}}))}) {
    const absl::StatusOr<SecretBytes> bytes = SecretFromText(kKind, typed);
    ASSERT_THAT(bytes, IsOk()) << typed;
    EXPECT_EQ(**bytes, *Counting()) << typed;
  }
}

TEST(SecretText, EveryWrongSymbolIsATypo) {
  const std::string text = Text();
  for (size_t i = kKind.prefix.size(); i < text.size(); ++i) {
    if (text[i] == '-') continue;
    for (const char c : absl::string_view("0123456789abcdefghjkmnpqrstvwxyz")) {
      if (c == text[i]) continue;
      std::string typed = text;
      typed[i] = c;
      EXPECT_THAT(SecretFromText(kKind, typed),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("typo")))
          << typed;
    }
  }
}

TEST(SecretText, NeighboursThatChangedPlacesAreATypo) {
  const std::string text = Text();
  for (size_t i = kKind.prefix.size(); i + 1 < text.size(); ++i) {
    std::string typed = text;
    std::swap(typed[i], typed[i + 1]);
    if (typed[i] == text[i] || typed[i] == '-' || text[i] == '-') continue;
    EXPECT_THAT(SecretFromText(kKind, typed),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("typo")))
        << typed;
  }
}

TEST(SecretText, MissingAndExtraCharactersAreCounted) {
  const std::string text = Text();
  for (const std::string& typed : {text.substr(0, text.size() - 1), text + "0", text + text,
                                   std::string(kKind.prefix), text + std::string(1'000'000, 'a')}) {
    EXPECT_THAT(SecretFromText(kKind, typed),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("56 characters")));
  }
}

TEST(SecretText, AnythingElseIsRefused) {
  for (const char* text : {"", " ", "-", "thing", "thing-2-", "other-1-0000", "\xff\xfe"}) {
    EXPECT_THAT(SecretFromText(kKind, text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("start with thing-1-"), HasSubstr("ask for one"))))
        << text;
  }
}

TEST(SecretText, AWrongCharacterIsPlacedButNotRepeated) {
  std::string text = Text();
  text[kKind.prefix.size() + 7] = 'u';
  const absl::Status status = SecretFromText(kKind, text).status();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("character 3 of group 2")));
  const std::string with_zero = text.substr(0, 20) + std::string(1, '\0') + text.substr(21);
  EXPECT_THAT(SecretFromText(kKind, with_zero), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(SecretText, ErrorsDoNotRepeatTheText) {
  std::string text = Text();
  for (const std::string& typed :
       {text.substr(3), text.substr(0, 60), text + "z", text.substr(0, text.size() - 2) + "uu"}) {
    const std::string words(SecretFromText(kKind, typed).status().message());
    for (size_t i = kKind.prefix.size(); i + 4 <= text.size(); i += 5) {
      EXPECT_THAT(words, Not(HasSubstr(text.substr(i, 4))));
    }
  }
}

TEST(SecretText, ChecksumsBelongToAKind) {
  const SecretKind other = {.name = "other", .prefix = "other-1-", .example = ""};
  const std::string text = Text();
  EXPECT_THAT(SecretFromText(other, "other-1-" + text.substr(kKind.prefix.size())),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("typo")));
}

TEST(Base32, FillsUpWithZeros) {
  EXPECT_EQ(Base32({}), "");
  EXPECT_EQ(Base32(std::vector<uint8_t>{0xff}), "zw");
  EXPECT_EQ(Base32(std::vector<uint8_t>{0, 0, 0, 0, 1}), "00000001");
}

TEST(NewSecretBytes, Differ) {
  const absl::StatusOr<SecretBytes> a = NewSecretBytes();
  const absl::StatusOr<SecretBytes> b = NewSecretBytes();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(**a, **b);
}

}  // namespace
}  // namespace strata
