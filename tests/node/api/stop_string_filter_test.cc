#include "node/api/stop_string_filter.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

TEST(StopStringFilter, PassesTextThrough) {
  StopStringFilter shaper({});
  EXPECT_EQ(shaper.Add("Once"), "Once");
  EXPECT_EQ(shaper.Add(" upon"), " upon");
  EXPECT_EQ(shaper.tokens_shown(), 2u);
  EXPECT_EQ(shaper.Finish(), "");
  EXPECT_FALSE(shaper.stopped());
}

TEST(StopStringFilter, NeverEndsInsideACharacter) {
  StopStringFilter shaper({});
  EXPECT_EQ(shaper.Add("a\xF0\x9F"), "a");
  EXPECT_EQ(shaper.tokens_shown(), 0u);
  EXPECT_EQ(shaper.Add("\x98"), "");
  EXPECT_EQ(shaper.Add("\x80"), "\xF0\x9F\x98\x80");
  EXPECT_EQ(shaper.tokens_shown(), 3u);
}

TEST(StopStringFilter, ShowsAnUnfinishedCharacterAtTheEnd) {
  StopStringFilter shaper({});
  EXPECT_EQ(shaper.Add("a\xC3"), "a");
  EXPECT_EQ(shaper.Finish(), "\xC3");
  EXPECT_EQ(shaper.tokens_shown(), 1u);
}

TEST(StopStringFilter, CutsBeforeAStopStringInOneToken) {
  StopStringFilter shaper({.stops = {"END"}});
  EXPECT_EQ(shaper.Add("the END of it"), "the ");
  EXPECT_TRUE(shaper.stopped());
  EXPECT_EQ(shaper.Add("more"), "");
  EXPECT_EQ(shaper.Finish(), "");
  EXPECT_EQ(shaper.tokens_shown(), 1u);
}

TEST(StopStringFilter, FindsAStopStringAcrossTokens) {
  StopStringFilter shaper({.stops = {"\n\nUser:"}});
  EXPECT_EQ(shaper.Add("Yes.\n"), "Yes.");
  EXPECT_EQ(shaper.Add("\nUs"), "");
  EXPECT_EQ(shaper.Add("er: no"), "");
  EXPECT_TRUE(shaper.stopped());
  EXPECT_EQ(shaper.tokens_shown(), 1u);
}

TEST(StopStringFilter, ShowsWhatDidNotBecomeAStopString) {
  StopStringFilter shaper({.stops = {"aab"}});
  EXPECT_EQ(shaper.Add("aa"), "");
  EXPECT_EQ(shaper.Add("a"), "a");  // "aa" may still be its start
  EXPECT_EQ(shaper.Add("c"), "aac");
  EXPECT_EQ(shaper.tokens_shown(), 3u);
}

TEST(StopStringFilter, TakesTheEarliestOfSeveral) {
  StopStringFilter shaper({.stops = {"xyz", "b"}});
  EXPECT_EQ(shaper.Add("abcxyz"), "a");
  EXPECT_TRUE(shaper.stopped());
}

TEST(StopStringFilter, FindsAStopStringThatBeginsWithinACharactersBytes) {
  StopStringFilter shaper({.stops = {"\u00e9!"}});
  EXPECT_EQ(shaper.Add("caf\xC3"), "caf");
  EXPECT_EQ(shaper.Add("\xA9"), "");
  EXPECT_EQ(shaper.Add("!"), "");
  EXPECT_TRUE(shaper.stopped());
}

TEST(StopStringFilter, CountsNoTokenOfWhichNothingIsShown) {
  StopStringFilter shaper({.stops = {"stop"}});
  EXPECT_EQ(shaper.Add("a"), "a");
  EXPECT_EQ(shaper.Add("st"), "");
  EXPECT_EQ(shaper.Add("op"), "");
  EXPECT_EQ(shaper.tokens_shown(), 1u);
}

TEST(StopStringFilter, CutsEverySplitOfATextAlike) {
  const std::string text = "ab\u00e4\u20ac\U0001F600-abab!aba\u00e4b-rest";
  const std::vector<std::string> stops = {"aba\u00e4", "!!"};
  const std::string expected = text.substr(0, text.find(stops[0]));
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    StopStringFilter shaper({.stops = stops});
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random() % 4;
      const std::string piece = shaper.Add(text.substr(at, n));
      EXPECT_EQ(UnfinishedUtf8Bytes(piece), 0u) << "seed " << seed;
      shown += piece;
      at += n;
    }
    shown += shaper.Finish();
    EXPECT_EQ(shown, expected) << "seed " << seed;
    EXPECT_TRUE(shaper.stopped()) << "seed " << seed;
  }
}

TEST(StopStringFilter, ShowsTheStopStringWhereThatIsAskedFor) {
  StopStringFilter shaper({.stops = {"END", "D"}, .show_stop = true});
  EXPECT_EQ(shaper.Add("the E"), "the ");
  EXPECT_EQ(shaper.Add("ND of it"), "END");
  EXPECT_TRUE(shaper.stopped());
  EXPECT_EQ(shaper.stop(), "END");
  EXPECT_EQ(shaper.tokens_shown(), 2u);
}

TEST(StopStringFilter, AStopStringMayBeginBehindSoManyTokensOnly) {
  StopStringFilter shaper({.stops = {"b"}, .tokens_min = 2});
  EXPECT_EQ(shaper.Add("ab"), "ab");
  EXPECT_EQ(shaper.Add("b"), "b");
  EXPECT_EQ(shaper.Add("ab"), "a");
  EXPECT_TRUE(shaper.stopped());
}

TEST(CharacterCount, CountsCharactersAndNotTheirBytes) {
  CharacterCount count;
  count.Add("a\u2014\U0001F600");
  EXPECT_EQ(count.begun(), 3u);
  EXPECT_EQ(count.PositionOf("x"), 3u);
}

TEST(CharacterCount, ATokenInsideACharacterIsWhereTheCharacterIs) {
  CharacterCount count;
  count.Add("a\xF0\x9F");
  EXPECT_EQ(count.PositionOf("\x98"), 1u);
  EXPECT_EQ(count.PositionOf("b"), 2u);  // the character was never ended
  count.Add("\x98");
  EXPECT_EQ(count.PositionOf("\x80z"), 1u);
  count.Add("\x80z");
  EXPECT_EQ(count.PositionOf("\xC3"), 3u);
}

TEST(CharacterCount, CountsWhatIsNoUtf8AsItIsShown) {
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
