#include "node/grammar/regex.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

constexpr uint32_t kLastPoint = 0x10FFFF;

Regex Chars(CharSet set) {
  return {.kind = Regex::Kind::kChars, .chars = Normalize(std::move(set))};
}
Regex Sequence(std::vector<Regex> parts) {
  return {.kind = Regex::Kind::kSequence, .parts = std::move(parts)};
}
Regex Of(Regex::Kind kind) { return {.kind = kind}; }
Regex Repeat(Regex part, GbnfExpr::Times times) {
  Regex regex = {.kind = Regex::Kind::kRepeat, .times = times};
  regex.parts.push_back(std::move(part));
  return regex;
}

CharSet DigitChars() { return {{'0', '9'}}; }
CharSet Spaces() {
  return {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}
CharSet LineEnds() { return {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}; }

CharSet Join(CharSet a, const CharSet& b) {
  a.insert(a.end(), b.begin(), b.end());
  return Normalize(std::move(a));
}

// A recursive descent over the pattern's code points; keeps the first error.
class Parser {
 public:
  explicit Parser(absl::string_view pattern) : text_(GbnfExpr::Text(pattern).text) {}

  absl::StatusOr<Regex> Parse() {
    Regex regex = Choice(0);
    if (at_ < text_.size()) Fail("has a \")\" without a \"(\"");
    if (!status_.ok()) return status_;
    return regex;
  }

 private:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  void Fail(absl::string_view words) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("is no regular expression: at character ", at_ + 1, " it ", words));
    }
    at_ = text_.size();
  }
  uint32_t Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : kNone;
  }
  bool Take(absl::string_view word) {
    for (size_t i = 0; i < word.size(); ++i) {
      if (Peek(i) != static_cast<unsigned char>(word[i])) return false;
    }
    at_ += word.size();
    return true;
  }

  Regex Choice(int depth) {
    if (depth > kRegexDepthMax) Fail(absl::StrCat("nests deeper than ", kRegexDepthMax));
    std::vector<Regex> parts;
    do {
      std::vector<Regex> terms;
      while (at_ < text_.size() && Peek() != '|' && Peek() != ')') {
        terms.push_back(Quantified(Term(depth)));
      }
      parts.push_back(Sequence(std::move(terms)));
    } while (Take("|"));
    if (parts.size() == 1) return std::move(parts[0]);
    return {.kind = Regex::Kind::kChoice, .parts = std::move(parts)};
  }

  Regex Group(Regex::Kind kind, bool negated, int depth) {
    Regex body = Choice(depth + 1);
    if (!Take(")")) Fail("lacks a \")\"");
    if (kind == Regex::Kind::kSequence) return body;
    Regex group = {.kind = kind, .negated = negated};
    if (kind == Regex::Kind::kAhead) group.parts.push_back(std::move(body));
    return group;
  }

  Regex Term(int depth) {
    using Kind = Regex::Kind;
    if (Take("^")) return Of(Kind::kStart);
    if (Take("$")) return Of(Kind::kEnd);
    if (Take(".")) return Chars(Complement(LineEnds()));
    if (Take("[")) return Class();
    if (Take("(?:")) return Group(Kind::kSequence, false, depth);
    if (Take("(?=")) return Group(Kind::kAhead, false, depth);
    if (Take("(?!")) return Group(Kind::kAhead, true, depth);
    if (Take("(?<=") || Take("(?<!")) return Group(Kind::kInexact, false, depth);
    if (Take("(?<")) {
      while (at_ < text_.size() && Peek() != '>') ++at_;
      if (!Take(">")) Fail("has a group's name without an end");
      return Group(Kind::kSequence, false, depth);
    }
    if (Take("(?")) {
      Fail("has a group of an unknown kind");
      return {};
    }
    if (Take("(")) return Group(Kind::kSequence, false, depth);
    if (Take("\\")) return Escape();
    const uint32_t point = text_[at_];
    if (point == '*' || point == '+' || point == '?') Fail("has nothing to repeat");
    ++at_;
    return Chars({{point, point}});
  }

  Regex Quantified(Regex term) {
    GbnfExpr::Times times;
    if (Take("*")) {
    } else if (Take("+")) {
      times.min = 1;
    } else if (Take("?")) {
      times.max = 1;
    } else if (Peek() != '{' || !Bounds(&times)) {
      return term;
    }
    Take("?");  // lazy: the same texts
    if (times.min > times.max) Fail("repeats at least more often than at most");
    if (times.min > kRegexRepeatMax) {
      Fail(absl::StrCat("repeats more than ", kRegexRepeatMax, " times"));
    }
    const bool is_long = times.max != GbnfExpr::kNoMax && times.max > kRegexRepeatMax;
    if (is_long) times.max = GbnfExpr::kNoMax;
    // An assertion holds once or never.
    const bool asserts = term.kind == Regex::Kind::kStart || term.kind == Regex::Kind::kEnd ||
                         term.kind == Regex::Kind::kAhead || term.kind == Regex::Kind::kBoundary;
    if (asserts) return times.min > 0 ? term : Sequence({});
    Regex repeat = Repeat(std::move(term), times);
    return is_long ? Sequence({std::move(repeat), Of(Regex::Kind::kInexact)}) : repeat;
  }
  // "{2}", "{2,}", "{2,3}"; another "{" stands for itself.
  bool Bounds(GbnfExpr::Times* times) {
    const size_t from = at_;
    const auto number = [this]() -> std::optional<uint32_t> {
      std::optional<uint32_t> value;
      for (; Peek() >= '0' && Peek() <= '9'; ++at_) {
        value = static_cast<uint32_t>(
            std::min<uint64_t>(uint64_t{value.value_or(0)} * 10 + (Peek() - '0'), 4'000'000'000));
      }
      return value;
    };
    ++at_;
    const auto min = number();
    if (min) {
      times->min = times->max = *min;
      if (Take(",")) times->max = number().value_or(GbnfExpr::kNoMax);
    }
    if (min && Take("}")) return true;
    at_ = from;
    return false;
  }

  // Behind a backslash, in a class or not: characters, where it stands for some.
  std::optional<CharSet> CharEscape(bool* inexact) {
    const uint32_t c = Peek();
    if (c == kNone) {
      Fail("ends with a backslash");
      return std::nullopt;
    }
    ++at_;
    const auto one = [](uint32_t point) { return CharSet{{point, point}}; };
    switch (c) {
      case 'd':
        return DigitChars();
      case 'D':
        return Complement(DigitChars());
      case 'w':
        return WordChars();
      case 'W':
        return Complement(WordChars());
      case 's':
        return Spaces();
      case 'S':
        return Complement(Spaces());
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'v':
        return one('\v');
      case 'f':
        return one('\f');
      case 'r':
        return one('\r');
      case '0':
        return one(0);
      case 'c': {
        const uint32_t letter = Peek();
        ++at_;
        return one(letter % 32);
      }
      case 'x':
        return one(Hex(2));
      case 'u':
        return one(CodePoint());
      case 'p':
      case 'P':
        *inexact = true;
        return Property(c == 'P');
      default:
        if (c < 0x80 && absl::ascii_isalnum(static_cast<unsigned char>(c))) {
          Fail("has an unknown escape");
        }
        return one(c);
    }
  }
  uint32_t Hex(size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const uint32_t c = Peek();
      if (c >= 0x80 || !absl::ascii_isxdigit(static_cast<unsigned char>(c))) {
        Fail("lacks a hexadecimal digit");
        return 0;
      }
      value = value * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return value;
  }
  uint32_t CodePoint() {
    if (Take("{")) {
      size_t digits = 0;
      while (Peek(digits) != '}' && Peek(digits) != kNone && digits < 7) ++digits;
      const uint32_t point = Hex(digits);
      if (!Take("}") || digits == 0 || point > kLastPoint) Fail("has no code point there");
      return std::min(point, kLastPoint);
    }
    const uint32_t high = Hex(4);
    if (high < 0xD800 || high > 0xDBFF || Peek() != '\\' || Peek(1) != 'u') return high;
    const size_t from = at_;
    at_ += 2;
    const uint32_t low = Hex(4);
    if (low >= 0xDC00 && low <= 0xDFFF) return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    at_ = std::min(from, text_.size());
    return high;
  }
  // A property of Unicode, roughly: of ASCII the right characters, and all others.
  CharSet Property(bool negated) {
    std::string name;
    if (!Take("{")) Fail("lacks the name of a property");
    while (at_ < text_.size() && Peek() != '}') name += static_cast<char>(text_[at_++] & 0x7F);
    if (!Take("}")) Fail("lacks the end of a property's name");
    if (const size_t equals = name.find('='); equals != std::string::npos) {
      name = name.substr(equals + 1);
    }
    const auto is = [&name](std::initializer_list<absl::string_view> names) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    CharSet ascii;
    if (is({"Lu", "Uppercase_Letter", "Uppercase"})) {
      ascii = {{'A', 'Z'}};
    } else if (is({"Ll", "Lowercase_Letter", "Lowercase"})) {
      ascii = {{'a', 'z'}};
    } else if (is({"L", "Letter", "Alphabetic", "Latin", "Latn", "ID_Start"})) {
      ascii = {{'A', 'Z'}, {'a', 'z'}};
    } else if (is({"N", "Number", "Nd", "Decimal_Number"})) {
      ascii = DigitChars();
    } else if (is({"ID_Continue"})) {
      ascii = WordChars();
    } else if (is({"Z", "Separator", "Zs", "Space_Separator", "White_Space"})) {
      ascii = {{' ', ' '}};
    } else if (is({"P", "Punctuation", "S", "Symbol"})) {
      ascii = {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}};
    }
    if (negated) {
      ascii = Complement(ascii);
      while (!ascii.empty() && ascii.back().first >= 0x80) ascii.pop_back();
    }
    return Join(std::move(ascii), {{0x80, kLastPoint}});
  }

  Regex Escape() {
    if (Take("b")) return Of(Regex::Kind::kBoundary);
    if (Take("B")) return {.kind = Regex::Kind::kBoundary, .negated = true};
    // What a group has matched: any text is taken.
    const bool is_number = Peek() >= '1' && Peek() <= '9';
    if (is_number || Take("k<")) {
      if (is_number) {
        while (Peek() >= '0' && Peek() <= '9') ++at_;
      } else {
        while (at_ < text_.size() && !Take(">")) ++at_;
      }
      return Sequence({Of(Regex::Kind::kInexact), Repeat(Chars(AnyChar()), {})});
    }
    bool inexact = false;
    Regex chars = Chars(CharEscape(&inexact).value_or(CharSet{}));
    return inexact ? Sequence({std::move(chars), Of(Regex::Kind::kInexact)}) : chars;
  }

  Regex Class() {
    const bool negated = Take("^");
    CharSet set;
    bool inexact = false;
    while (status_.ok() && !Take("]")) {
      if (at_ >= text_.size()) {
        Fail("lacks a \"]\"");
        break;
      }
      const CharSet low = ClassPart(&inexact);
      if (Peek() == '-' && Peek(1) != ']' && Peek(1) != kNone && IsOne(low)) {
        ++at_;
        const CharSet high = ClassPart(&inexact);
        if (!IsOne(high)) {  // as without the flag u: a minus sign
          set = Join(Join(std::move(set), low), Join(high, {{'-', '-'}}));
          continue;
        }
        if (high[0].first < low[0].first) Fail("has a range whose end is before its start");
        set.push_back({low[0].first, high[0].first});
        continue;
      }
      set.insert(set.end(), low.begin(), low.end());
    }
    set = Normalize(std::move(set));
    Regex chars = Chars(negated ? Complement(set) : set);
    return inexact ? Sequence({std::move(chars), Of(Regex::Kind::kInexact)}) : chars;
  }
  static bool IsOne(const CharSet& set) { return set.size() == 1 && set[0].first == set[0].last; }
  CharSet ClassPart(bool* inexact) {
    if (Take("\\b")) return {{'\b', '\b'}};
    if (Take("\\")) return CharEscape(inexact).value_or(CharSet{});
    const uint32_t point = Peek();
    ++at_;
    return {{point, point}};
  }

  const std::vector<uint32_t> text_;
  size_t at_ = 0;
  absl::Status status_;
};

}  // namespace

CharSet Normalize(CharSet set) {
  std::sort(set.begin(), set.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  CharSet apart;
  for (const GbnfExpr::Range& range : set) {
    if (!apart.empty() && range.first <= apart.back().last + 1) {
      apart.back().last = std::max(apart.back().last, range.last);
    } else {
      apart.push_back(range);
    }
  }
  return apart;
}

CharSet Complement(const CharSet& set) {
  CharSet others;
  uint32_t next = 0;
  for (const GbnfExpr::Range& range : set) {
    if (range.first > next) others.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastPoint) others.push_back({next, kLastPoint});
  return others;
}

CharSet AnyChar() { return {{0, kLastPoint}}; }

const CharSet& WordChars() {
  static const auto* const chars = new CharSet({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
  return *chars;
}

absl::StatusOr<Regex> ParseRegex(absl::string_view pattern) {
  if (pattern.size() > kRegexBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("may have at most ", kRegexBytesMax, " bytes"));
  }
  return Parser(pattern).Parse();
}

Regex TextRegex(absl::string_view text) {
  std::vector<Regex> parts;
  for (const uint32_t point : GbnfExpr::Text(text).text) parts.push_back(Chars({{point, point}}));
  return Sequence(std::move(parts));
}

Regex WholeRegex(Regex regex) {
  if (regex.kind != Regex::Kind::kSequence) regex = Sequence({std::move(regex)});
  if (regex.parts.empty() || regex.parts[0].kind != Regex::Kind::kStart) {
    regex.parts.insert(regex.parts.begin(), Of(Regex::Kind::kStart));
  }
  regex.parts.push_back(Of(Regex::Kind::kEnd));
  return regex;
}

Regex LengthRegex(GbnfExpr::Times times) { return WholeRegex(Repeat(Chars(AnyChar()), times)); }

bool IsExact(const Regex& regex) {
  return regex.kind != Regex::Kind::kInexact &&
         std::all_of(regex.parts.begin(), regex.parts.end(), IsExact);
}

bool HasExactAutomaton(const Regex& regex) {
  return regex.kind != Regex::Kind::kInexact && regex.kind != Regex::Kind::kAhead &&
         regex.kind != Regex::Kind::kBoundary &&
         std::all_of(regex.parts.begin(), regex.parts.end(), HasExactAutomaton);
}

std::vector<TextRule> RulesOf(const Regex& regex) {
  Regex main = regex;
  std::vector<TextRule> aheads;
  // "^(?=…)(?!…)…": each look-ahead is a rule about the whole text.
  while (main.kind == Regex::Kind::kSequence && main.parts.size() > 1 &&
         main.parts[0].kind == Regex::Kind::kStart && main.parts[1].kind == Regex::Kind::kAhead &&
         HasExactAutomaton(main.parts[1].parts[0])) {
    Regex& ahead = main.parts[1];
    aheads.push_back({.regex = Sequence({Of(Regex::Kind::kStart), std::move(ahead.parts[0])}),
                      .negated = ahead.negated});
    main.parts.erase(main.parts.begin() + 1);
  }
  std::vector<TextRule> rules = {{.regex = std::move(main)}};
  rules.insert(rules.end(), aheads.begin(), aheads.end());
  return rules;
}

}  // namespace strata
