#include "node/grammar/text_matcher.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

std::vector<TextRule> Rules(const std::string& pattern) {
  const auto regex = ParseRegex(pattern);
  EXPECT_THAT(regex, IsOk()) << pattern;
  return regex.ok() ? RulesOf(*regex) : std::vector<TextRule>{};
}

bool Matches(const std::string& pattern, const std::string& text) {
  return TextMatcher::Create(Rules(pattern))->Matches(text);
}

std::optional<std::vector<TextMatcher::State>> Automaton(const std::vector<TextRule>& rules) {
  size_t work = kDfaWorkMax;
  return TextMatcher::Create(rules)->Determinize(&work);
}

bool Accepts(const std::vector<TextMatcher::State>& states, const std::string& text) {
  size_t at = 0;
  if (states.empty()) return false;
  for (const uint32_t point : GbnfExpr::Text(text).text) {
    std::optional<size_t> to;
    for (const TextMatcher::Edge& edge : states[at].edges) {
      for (const GbnfExpr::Range& range : edge.chars) {
        if (point < range.first || point > range.last) continue;
        EXPECT_FALSE(to.has_value()) << "two ways for " << text;
        to = edge.to;
      }
    }
    if (!to) return false;
    at = *to;
  }
  return states[at].accepts;
}

struct Case {
  const char* pattern;
  std::vector<std::string> good, bad;
};

// Of which the automaton is exact, too.
const Case kCases[] = {
    {"", {"", "a"}, {}},
    {"b", {"b", "abc"}, {"", "ac"}},
    {"^b", {"b", "bc"}, {"", "ab"}},
    {"b$", {"b", "ab"}, {"", "ba"}},
    {"^$", {""}, {"a"}},
    {"^a|b$", {"a", "ax", "b", "xb"}, {"xa", "bx", ""}},
    {"^(?:a|bc)*$", {"", "a", "bcabc"}, {"b", "ab"}},
    {"^[a-c]{2,3}$", {"ab", "cba"}, {"a", "abcd", "ad"}},
    {"^a{2}b{1,}c{0,1}$", {"aab", "aabbbc"}, {"ab", "aabcc"}},
    {"^a{,2}$", {"a{,2}"}, {"a", "aa"}},
    {"^[^\\d\\s]+$", {"abc", "\u00e9"}, {"a1", "a b", ""}},
    {"\\S", {"a", " a "}, {"", " \n\t"}},
    {"^.$", {"a", "\u00e9", "\U0001F600"}, {"\n", "", "ab"}},
    {"^[\\w.-]+@[\\w-]+\\.\\w+$", {"a.b@c-d.e"}, {"a@b", "@b.c"}},
    {"^\\x41\\u0042\\u{43}\\t\\/\\cJ$", {"ABC\t/\n"}, {"ABC"}},
    {"^\\ud83d\\ude00$", {"\U0001F600"}, {"x"}},
    {"^(?<year>\\d{4})-(\\d\\d)$", {"2024-12"}, {"24-12"}},
    {"^a*?b+?$", {"b", "aabb"}, {"a"}},
    {"^[\\]\\-a]$", {"]", "-", "a"}, {"b"}},
    {"^[a-]$", {"a", "-"}, {"b"}},
    {"^[\\w-a]$", {"-", "z"}, {"!"}},
    {"^(?=.*\\d)(?=.*[A-Z])(?!.*\\s).{4,8}$",
     {"aB3d", "XX9999"},
     {"ab3d", "aB3", "aB 3d", "aB3456789"}},
    {"^(?!\\.)(?!.*\\.\\.)[a-z.]+$", {"a.b", "a."}, {".a", "a..b"}},
    {"^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$", {"1", "-0.5", "+07.", ".5"}, {"", "-", ".", "1.2.3"}},
};

TEST(TextMatcher, MatchesWhatTheExpressionMatches) {
  for (const Case& test : kCases) {
    const auto states = Automaton(Rules(test.pattern));
    ASSERT_TRUE(states.has_value()) << test.pattern;
    for (const std::string& text : test.good) {
      EXPECT_TRUE(Matches(test.pattern, text)) << test.pattern << "\n" << text;
      EXPECT_TRUE(Accepts(*states, text)) << test.pattern << "\n" << text;
    }
    for (const std::string& text : test.bad) {
      EXPECT_FALSE(Matches(test.pattern, text)) << test.pattern << "\n" << text;
      EXPECT_FALSE(Accepts(*states, text)) << test.pattern << "\n" << text;
    }
  }
}

TEST(TextMatcher, LooksAheadAnywhereAndSeesWords) {
  const Case cases[] = {
      {"^[+-]?0*(?:\\d{0,4}|(?=[\\d.]{1,7}0*$)\\d{0,4}\\.\\d{0,2}0*)$",
       {"1234", "12.34", "-1.50000"},
       {"12345", "12.345"}},
      {"\\bcat\\b", {"a cat", "cat"}, {"concat", "cats"}},
      {"^a\\Bb", {"ab"}, {"a b"}},
      {"^(?:(?!ab).)*$", {"", "ba", "aa"}, {"xab"}},
      {"a(?!b(?=c))", {"ab", "abd"}, {"abc", "b"}},
  };
  for (const Case& test : cases) {
    for (const std::string& text : test.good) {
      EXPECT_TRUE(Matches(test.pattern, text)) << test.pattern << "\n" << text;
      EXPECT_TRUE(Accepts(*Automaton(Rules(test.pattern)), text)) << "relaxed: " << test.pattern;
    }
    for (const std::string& text : test.bad) {
      EXPECT_FALSE(Matches(test.pattern, text)) << test.pattern << "\n" << text;
    }
  }
}

TEST(TextMatcher, SaysWhereItIsNotExact) {
  for (const char* pattern : {"(a)\\1", "(?<=a)b", "\\p{L}", "a{1,30000}"}) {
    EXPECT_FALSE(IsExact(*ParseRegex(pattern))) << pattern;
  }
  for (const char* pattern : {"\\bcat", "a(?=b)"}) {
    EXPECT_TRUE(IsExact(*ParseRegex(pattern))) << pattern;
    EXPECT_FALSE(HasExactAutomaton(*ParseRegex(pattern))) << pattern;
  }
}

TEST(TextMatcher, WhatIsNoExpressionIsRefusedWithItsPlace) {
  for (const char* pattern : {"(", ")", "a)", "[a", "*", "a**", "a{2,1}", "(?x)", "\\", "\\q",
                              "\\u12", "[b-a]", "\\p", "a{30000}"}) {
    EXPECT_THAT(ParseRegex(pattern),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at character")))
        << pattern;
  }
}

TEST(TextMatcher, AHostileExpressionIsBounded) {
  // Exponential for a matcher that backtracks.
  EXPECT_FALSE(Matches("^(?:a*)*(?:a*)*b$", std::string(2000, 'a')));
  // An automaton of 2^30 states.
  EXPECT_FALSE(Automaton(Rules("^(?:a|b)*a(?:a|b){30}$")).has_value());
  const auto nested = ParseRegex("(?:(?:(?:a{20000}){20000}){20000})");
  ASSERT_THAT(nested, IsOk());
  EXPECT_FALSE(TextMatcher::Create({{.regex = *nested}}).has_value());
  const auto empty = ParseRegex("(?:(?:(?:(?:){20000}){20000}){20000})");
  ASSERT_THAT(empty, IsOk());
  EXPECT_FALSE(TextMatcher::Create({{.regex = *empty}}).has_value());
  EXPECT_THAT(ParseRegex(std::string(1000, '(')), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ParseRegex(std::string(kRegexBytesMax + 1, 'a')),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(TextMatcher, RulesAreMetTogether) {
  const std::vector<TextRule> rules = {{.regex = *ParseRegex("^[a-z]+$")},
                                       {.regex = LengthRegex({.min = 2, .max = 3})},
                                       {.regex = WholeRegex(TextRegex("abc")), .negated = true}};
  const auto states = Automaton(rules);
  ASSERT_TRUE(states.has_value());
  for (const char* text : {"ab", "abd"}) EXPECT_TRUE(Accepts(*states, text)) << text;
  for (const char* text : {"a", "abc", "abcd", "A1"}) EXPECT_FALSE(Accepts(*states, text)) << text;
  EXPECT_TRUE(Automaton({{.regex = *ParseRegex("^a")}, {.regex = *ParseRegex("^b")}})->empty());
}

}  // namespace
}  // namespace strata
