#include "node/api/stop_string_filter.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "transport/base/utf8.h"

namespace strata {
namespace {

TEST(StopStringFilter, PassesTextThrough) {
  StopStringFilter filter({});
  EXPECT_EQ(filter.Add("Once"), "Once");
  EXPECT_EQ(filter.Add(" upon"), " upon");
  EXPECT_EQ(filter.tokens_shown(), 2u);
  EXPECT_EQ(filter.Finish(), "");
  EXPECT_FALSE(filter.stopped());
}

TEST(StopStringFilter, NeverEndsInsideACharacter) {
  StopStringFilter filter({});
  EXPECT_EQ(filter.Add("a\xF0\x9F"), "a");
  EXPECT_EQ(filter.tokens_shown(), 0u);
  EXPECT_EQ(filter.Add("\x98"), "");
  EXPECT_EQ(filter.Add("\x80"), "\xF0\x9F\x98\x80");
  EXPECT_EQ(filter.tokens_shown(), 3u);
}

TEST(StopStringFilter, ShowsAnUnfinishedCharacterAtTheEnd) {
  StopStringFilter filter({});
  EXPECT_EQ(filter.Add("a\xC3"), "a");
  EXPECT_EQ(filter.Finish(), "\xC3");
  EXPECT_EQ(filter.tokens_shown(), 1u);
}

TEST(StopStringFilter, CutsBeforeAStopStringInOneToken) {
  StopStringFilter filter({.stops = {"END"}});
  EXPECT_EQ(filter.Add("the END of it"), "the ");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.Add("more"), "");
  EXPECT_EQ(filter.Finish(), "");
  EXPECT_EQ(filter.tokens_shown(), 1u);
}

TEST(StopStringFilter, FindsAStopStringAcrossTokens) {
  StopStringFilter filter({.stops = {"\n\nUser:"}});
  EXPECT_EQ(filter.Add("Yes.\n"), "Yes.");
  EXPECT_EQ(filter.Add("\nUs"), "");
  EXPECT_EQ(filter.Add("er: no"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.tokens_shown(), 1u);
}

TEST(StopStringFilter, ShowsOutputThatDidNotBecomeAStopString) {
  StopStringFilter filter({.stops = {"aab"}});
  EXPECT_EQ(filter.Add("aa"), "");
  EXPECT_EQ(filter.Add("a"), "a");  // "aa" may still be its start
  EXPECT_EQ(filter.Add("c"), "aac");
  EXPECT_EQ(filter.tokens_shown(), 3u);
}

TEST(StopStringFilter, TakesTheEarliestOfSeveral) {
  StopStringFilter filter({.stops = {"xyz", "b"}});
  EXPECT_EQ(filter.Add("abcxyz"), "a");
  EXPECT_TRUE(filter.stopped());
}

TEST(StopStringFilter, FindsAStopStringThatBeginsWithinACharactersBytes) {
  StopStringFilter filter({.stops = {"\u00e9!"}});
  EXPECT_EQ(filter.Add("caf\xC3"), "caf");
  EXPECT_EQ(filter.Add("\xA9"), "");
  EXPECT_EQ(filter.Add("!"), "");
  EXPECT_TRUE(filter.stopped());
}

TEST(StopStringFilter, CountsNoTokenOfWhichNothingIsShown) {
  StopStringFilter filter({.stops = {"stop"}});
  EXPECT_EQ(filter.Add("a"), "a");
  EXPECT_EQ(filter.Add("st"), "");
  EXPECT_EQ(filter.Add("op"), "");
  EXPECT_EQ(filter.tokens_shown(), 1u);
}

TEST(StopStringFilter, CutsEverySplitOfAStringAlike) {
  const std::string text = "ab\u00e4\u20ac\U0001F600-abab!aba\u00e4b-rest";
  const std::vector<std::string> stops = {"aba\u00e4", "!!"};
  const std::string expected = text.substr(0, text.find(stops[0]));
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    StopStringFilter filter({.stops = stops});
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random() % 4;
      const std::string piece = filter.Add(text.substr(at, n));
      EXPECT_EQ(UnfinishedUtf8Bytes(piece), 0u) << "seed " << seed;
      shown += piece;
      at += n;
    }
    shown += filter.Finish();
    EXPECT_EQ(shown, expected) << "seed " << seed;
    EXPECT_TRUE(filter.stopped()) << "seed " << seed;
  }
}

TEST(StopStringFilter, ShowsTheStopStringOnRequest) {
  StopStringFilter filter({.stops = {"END", "D"}, .show_stop = true});
  EXPECT_EQ(filter.Add("the E"), "the ");
  EXPECT_EQ(filter.Add("ND of it"), "END");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.stop(), "END");
  EXPECT_EQ(filter.tokens_shown(), 2u);
}

TEST(StopStringFilter, NoStopStringBeginsWithinTokensMin) {
  StopStringFilter filter({.stops = {"b"}, .tokens_min = 2});
  EXPECT_EQ(filter.Add("ab"), "ab");
  EXPECT_EQ(filter.Add("b"), "b");
  EXPECT_EQ(filter.Add("ab"), "a");
  EXPECT_TRUE(filter.stopped());
}

TEST(CharacterCount, CountsCharactersAndNotTheirBytes) {
  CharacterCount count;
  count.Add("a\u2014\U0001F600");
  EXPECT_EQ(count.begun(), 3u);
  EXPECT_EQ(count.PositionOf("x"), 3u);
}

TEST(CharacterCount, ATokenInsideACharacterHasTheCharactersPosition) {
  CharacterCount count;
  count.Add("a\xF0\x9F");
  EXPECT_EQ(count.PositionOf("\x98"), 1u);
  EXPECT_EQ(count.PositionOf("b"), 2u);  // the character was never ended
  count.Add("\x98");
  EXPECT_EQ(count.PositionOf("\x80z"), 1u);
  count.Add("\x80z");
  EXPECT_EQ(count.PositionOf("\xC3"), 3u);
}

TEST(CharacterCount, CountsInvalidUtf8AsItIsShown) {
  for (const std::string& text :
       {std::string("\xFF\xFE"), std::string("\xE2\x82z"), std::string("\xE0\x80"),
        std::string("\xED\xA0\x80"), std::string("\xF4\x90\x80\x80"), std::string("\xC3"),
        std::string("\xF0\x9F\x98\xF0\x9F\x98\x80")}) {
    CharacterCount count, shown;
    count.Add(text);
    shown.Add(nlohmann::json(text)
                  .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                  .substr(1));
    EXPECT_EQ(count.begun(), shown.begun() - 1) << text;  // a quote ends the string
  }
}

}  // namespace
}  // namespace strata
