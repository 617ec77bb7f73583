// Regular expressions as JSON Schema's `pattern` has them, as a tree. Pure; no expression is
// trusted.
//
// The language: ECMA-262 with the flag u, https://tc39.es/ecma262/#sec-patterns
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "shard/sampling/gbnf.h"

namespace strata {

inline constexpr size_t kRegexBytesMax = 8 * 1024;
inline constexpr int kRegexDepthMax = 64;
inline constexpr uint32_t kRegexRepeatMax = 20'000;

// Code points, in order and apart from each other.
using CharSet = std::vector<GbnfExpr::Range>;
CharSet Normalize(CharSet set);
CharSet Complement(const CharSet& set);
CharSet AnyChar();
const CharSet& WordChars();

struct Regex {
  enum class Kind {
    kChars,
    kSequence,  // of no parts: the empty text
    kChoice,
    kRepeat,
    kStart,     // of the text
    kEnd,       // of the text
    kAhead,     // what follows begins with the part, or does not
    kBoundary,  // of a word, or none
    kInexact,   // matches the empty text, for what is not read here, or a bound beyond ours
  };
  Kind kind = Kind::kSequence;
  CharSet chars = {};
  std::vector<Regex> parts = {};
  GbnfExpr::Times times = {};
  bool negated = false;  // kAhead, kBoundary
};
// kInvalidArgument: where and why it is no regular expression, or is too large.
absl::StatusOr<Regex> ParseRegex(absl::string_view pattern);

Regex TextRegex(absl::string_view text);
Regex WholeRegex(Regex regex);  // with a start and an end
// Texts of so many characters.
Regex LengthRegex(GbnfExpr::Times times);

// A condition on a text: that the expression is found in it, or that it is not.
struct TextRule {
  Regex regex;
  bool negated = false;
};
// An expression's rules, of which each look-ahead at its beginning is one of its own. Those that
// cannot be matched exactly let more texts pass.
std::vector<TextRule> RulesOf(const Regex& regex);
// Whether TextMatcher::Matches() tells exactly, and whether the automaton of Determinize() does.
bool IsExact(const Regex& regex);
bool HasExactAutomaton(const Regex& regex);

}  // namespace strata
