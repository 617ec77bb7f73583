// Strings and numbers.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "node/grammar/json_schema_grammar.h"
#include "node/grammar/number_grammar.h"
#include "node/grammar/string_formats.h"

namespace strata {
namespace {

using Expr = GbnfExpr;

constexpr int kInlinedStatesMax = 16;

CharSet Both(const CharSet& a, const CharSet& b) {
  CharSet neither = Complement(a);
  const CharSet others = Complement(b);
  neither.insert(neither.end(), others.begin(), others.end());
  return Complement(Normalize(std::move(neither)));
}

// One of the characters as a string has it: plain, or with the short escape that it needs.
Expr CharIn(const CharSet& set) {
  static const auto* const plain =
      new CharSet({{' ', '!'}, {'#', '['}, {']', 0x10FFFF}});  // all but controls, '"' and '\'
  constexpr std::pair<uint32_t, char> kEscapes[] = {
      {'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};
  std::vector<Expr> parts;
  if (CharSet as_is = Both(set, *plain); !as_is.empty())
    parts.push_back(Expr::Class(std::move(as_is)));
  std::vector<Expr::Range> letters;
  for (const auto& [point, letter] : kEscapes) {
    const auto code = static_cast<uint32_t>(letter);
    if (!Both(set, {{point, point}}).empty()) letters.push_back({code, code});
  }
  if (!letters.empty()) {
    parts.push_back(Expr::Sequence({Expr::Text("\\"), Expr::Class(std::move(letters))}));
  }
  if (parts.empty()) {  // other controls
    for (const Expr::Range& range : set) {
      for (uint32_t point = range.first; point <= range.last; ++point) {
        parts.push_back(Expr::Text(absl::StrCat("\\u", absl::Hex(point, absl::kZeroPad4))));
      }
    }
  }
  return Expr::Choice(std::move(parts));
}

// The repeated characters of "^[a-z]{2,9}$", and how often they are there. Null: another form.
const Regex* RepeatedChars(const Regex& regex) {
  using Kind = Regex::Kind;
  if (regex.kind != Kind::kSequence || regex.parts.size() != 3 ||
      regex.parts[0].kind != Kind::kStart || regex.parts[2].kind != Kind::kEnd) {
    return nullptr;
  }
  const Regex& repeat = regex.parts[1];
  return repeat.kind == Kind::kRepeat && repeat.parts[0].kind == Kind::kChars ? &repeat : nullptr;
}

// The regular expression of the schema's format; null: it has none that is known.
const char* KnownFormat(const SchemaJson& schema) {
  const SchemaJson* format = Keyword(schema, "format");
  return format != nullptr && format->is_string()
             ? FormatRegex(format->get_ref<const std::string&>())
             : nullptr;
}

// The nearest whole number within a bound; the ends of int64 for those beyond.
int64_t WholeBound(const SchemaJson& bound, bool is_low, bool exclusive) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min() + 1;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  int64_t whole = 0;
  if (bound.is_number_float()) {
    const double at = bound.get<double>();
    if (std::abs(at) >= 9.2e18) return at < 0 ? kLeast : kMost;
    const double near = is_low ? std::ceil(at) : std::floor(at);
    exclusive = exclusive && near == at;
    whole = static_cast<int64_t>(near);
  } else if (bound.is_number_unsigned() && bound.get<uint64_t>() > static_cast<uint64_t>(kMost)) {
    return kMost;
  } else {
    whole = std::max(bound.get<int64_t>(), kLeast);
  }
  if (!exclusive) return whole;
  return is_low ? whole + (whole < kMost ? 1 : 0) : whole - (whole > kLeast ? 1 : 0);
}

// How many digits behind the point the multiples of a power of ten have; null: it is none.
std::optional<int> DigitsOfMultiples(double of) {
  for (int digits = 0; digits <= kFractionDigitsMax; ++digits) {
    if (std::abs(of * std::pow(10.0, digits) - 1) < 1e-9) return digits;
  }
  return std::nullopt;
}

}  // namespace

Expr RepeatAnyNumber(Expr part, Expr::Times times) {
  constexpr uint32_t kMost = kGrammarRepeatMax;
  const auto exactly = [](Expr one, uint32_t n) { return Expr::Repeat(std::move(one), {n, n}); };
  if (times.min <= kMost && (times.max == Expr::kNoMax || times.max <= kMost)) {
    return Expr::Repeat(std::move(part), times);
  }
  std::vector<Expr> parts;
  uint32_t left = times.min;
  for (; left > kMost; left -= kMost) parts.push_back(exactly(part, kMost));
  if (left > 0) parts.push_back(exactly(part, left));
  if (times.max == Expr::kNoMax) {
    parts.push_back(Expr::Repeat(part, {.min = 0}));
    return Expr::Sequence(std::move(parts));
  }
  Expr rest = Expr::Repeat(part, {.min = 0, .max = (times.max - times.min) % kMost});
  for (uint32_t n = (times.max - times.min) / kMost; n > 0; --n) {
    rest = Expr::Choice({Expr::Repeat(part, {.min = 0, .max = kMost - 1}),
                         Expr::Sequence({exactly(part, kMost), std::move(rest)})});
  }
  parts.push_back(std::move(rest));
  return Expr::Sequence(std::move(parts));
}

absl::StatusOr<std::vector<TextRule>> JsonGrammar::PatternRules(const std::string& pattern,
                                                                const Place& place) {
  const auto regex = ParseRegex(pattern);
  if (!regex.ok()) return BadSchema(place.path, regex.status().message());
  std::vector<TextRule> rules = RulesOf(*regex);
  if (!HasExactAutomaton(rules[0].regex)) Relax(place);
  return rules;
}

// The rules of a string's pattern, length and format, in this order.
absl::StatusOr<std::vector<TextRule>> JsonGrammar::StringRules(const SchemaJson& schema,
                                                               const Place& place) {
  std::vector<TextRule> rules;
  if (const SchemaJson* pattern = Keyword(schema, "pattern"); pattern != nullptr) {
    if (!pattern->is_string()) {
      return BadSchema(place.path + ".pattern", "must be a regular expression, a string");
    }
    auto of_pattern = PatternRules(pattern->get_ref<const std::string&>(), place.In("pattern"));
    if (!of_pattern.ok()) return of_pattern.status();
    rules = *std::move(of_pattern);
  }
  const auto times = TimesOf(schema, {"minLength", "maxLength"}, place);
  if (!times.ok()) return times.status();
  if (times->min > 0 || times->max != Expr::kNoMax) rules.push_back({.regex = LengthRegex(*times)});
  if (const char* format = KnownFormat(schema); format != nullptr) {
    rules.push_back({.regex = ParseRegex(format).value()});
  }
  return rules;
}

// Strings that meet the rules. Where an automaton of all would be too large, of the first ones.
absl::StatusOr<GbnfExpr> JsonGrammar::Strings(std::vector<TextRule> rules, const Place& place) {
  for (; !rules.empty(); rules.pop_back()) {
    const auto matcher = TextMatcher::Create(rules);
    if (!Work((matcher ? matcher->nodes() : kMatcherNodesMax) / 16) ||
        (!matcher && rules.size() == 1)) {
      return BadSchema(place.path, "has patterns that are too large");
    }
    const auto states = matcher ? matcher->Determinize(&dfa_work_) : std::nullopt;
    if (states && states->empty()) return UnmetSchema(place.path, "no string meets it");
    if (states) return Automaton(*states);
    const Regex* repeat = rules.size() == 1 ? RepeatedChars(rules[0].regex) : nullptr;
    if (repeat != nullptr) {
      return Expr::Sequence({Expr::Text("\""), Repeated(*repeat, repeat->times), Expr::Text("\"")});
    }
    Relax(place);
  }
  return Expr::Rule(string_);
}

GbnfExpr JsonGrammar::Repeated(const Regex& repeat, GbnfExpr::Times times) const {
  return RepeatAnyNumber(Char(repeat.parts[0].chars), times);
}

GbnfExpr JsonGrammar::Char(const CharSet& set) const {
  const CharSet any = AnyChar();
  const bool is_any = set.size() == 1 && set[0].first == any[0].first && set[0].last == any[0].last;
  return is_any ? Expr::Rule(character_) : CharIn(set);
}

// A string of the texts that an automaton accepts; a rule for each state that several lead to.
GbnfExpr JsonGrammar::Automaton(const std::vector<TextMatcher::State>& states) {
  std::vector<int> uses(states.size(), 0);
  for (const TextMatcher::State& state : states) {
    Work(1 + state.edges.size());
    for (const TextMatcher::Edge& edge : state.edges) ++uses[edge.to];
  }
  std::map<size_t, size_t> rules;
  std::vector<size_t> todo;
  const auto rule_of = [&](size_t state) {
    const auto [entry, added] = rules.try_emplace(state, 0);
    if (added) {
      entry->second = NewRule("re", Expr::Text("")).rule;
      todo.push_back(state);
    }
    return Expr::Rule(entry->second);
  };
  const auto body = [&](const auto& self, size_t at, int depth) -> Expr {
    std::vector<Expr> parts;
    if (states[at].accepts) parts.push_back(Expr::Text("\""));
    for (const TextMatcher::Edge& edge : states[at].edges) {
      const bool is_inlined = uses[edge.to] == 1 && edge.to != 0 && depth < kInlinedStatesMax;
      parts.push_back(Expr::Sequence(
          {Char(edge.chars), is_inlined ? self(self, edge.to, depth + 1) : rule_of(edge.to)}));
    }
    return Expr::Choice(std::move(parts));
  };
  Expr start = rule_of(0);
  while (!todo.empty()) {
    const size_t state = todo.back();
    todo.pop_back();
    Expr expr = body(body, state, 0);
    grammar_.rules[rules[state]].body = std::move(expr);
  }
  return Expr::Sequence({Expr::Text("\""), std::move(start)});
}

absl::StatusOr<GbnfExpr> JsonGrammar::VisitString(const SchemaJson& schema, const Place& place) {
  auto rules = StringRules(schema, place);
  if (!rules.ok()) return rules.status();
  if (rules->empty()) return Expr::Rule(string_);
  auto times = TimesOf(schema, {"minLength", "maxLength"}, place);
  if (!times.ok()) return times.status();
  std::string key = absl::StrCat("string ", times->min, " ", times->max);
  for (const char* name : {"pattern", "format"}) {
    const SchemaJson* field = Keyword(schema, name);
    absl::StrAppend(&key, " ", field != nullptr ? field->dump() : "");
  }
  if (const auto known = shared_.find(key); known != shared_.end())
    return Expr::Rule(known->second);
  // Without an automaton: some characters, so many times.
  const bool has_length = times->min > 0 || times->max != Expr::kNoMax;
  const Regex* repeat = RepeatedChars((*rules)[0].regex);
  if (repeat != nullptr && rules->size() == (has_length && schema.contains("pattern") ? 2u : 1u)) {
    times->min = std::max(times->min, repeat->times.min);
    times->max = std::min(times->max, repeat->times.max);
    if (times->min > times->max) {
      return UnmetSchema(place.path + ".pattern", "no string of such a length matches it");
    }
    return Shared(key,
                  Expr::Sequence({Expr::Text("\""), Repeated(*repeat, *times), Expr::Text("\"")}));
  }
  auto strings = Strings(*rules, place);
  if (!strings.ok() && IsUnmet(strings.status()) && schema.contains("pattern") &&
      KnownFormat(schema) != nullptr) {
    rules->pop_back();  // beside a pattern, a format is a remark
    Relax(place.In("format"));
    strings = Strings(*std::move(rules), place);
  }
  if (!strings.ok()) return strings.status();
  return Shared(key, *std::move(strings));
}

// The multiples of `of` from low to high; null: no grammar of a bounded size has them alone.
std::optional<GbnfExpr> JsonGrammar::Multiples(int64_t low, int64_t high, int64_t of) {
  if (low > 0 || high < 0 || high / of - low / of < kMultiplesListedMax) {
    const int64_t first = low / of + (low > 0 && low % of != 0 ? 1 : 0);
    const int64_t last = high / of - (high < 0 && high % of != 0 ? 1 : 0);
    if (first > last) return Expr::Choice({});
    if (last - first >= kMultiplesListedMax) return std::nullopt;
    std::vector<Word> words;
    for (int64_t i = first; i <= last; ++i) {
      words.push_back({Expr::Text(absl::StrCat(i * of)).text, Expr::Text("")});
    }
    return Words(std::move(words), 0, 0);
  }
  // Digit by digit, by the remainder so far: what may follow it, in at most so many digits.
  if (of > kMultipleOfMax || (low != 0 && low > -kWholeMax) || high < kWholeMax)
    return std::nullopt;
  std::vector<std::optional<Expr>> behind(static_cast<size_t>(of));
  behind[0] = Expr::Text("");
  const auto next = [&](int64_t remainder, uint32_t first_digit) {
    std::map<int64_t, std::vector<Expr::Range>> digits;
    for (uint32_t d = first_digit; d <= 9; ++d) {
      digits[(remainder * 10 + d) % of].push_back({'0' + d, '0' + d});
    }
    std::vector<Expr> parts;
    for (auto& [to, chars] : digits) {
      const std::optional<Expr>& rest = behind[static_cast<size_t>(to)];
      if (rest) parts.push_back(Expr::Sequence({Expr::Class(std::move(chars)), *rest}));
    }
    return parts;
  };
  for (int left = 1; left < kWholeDigits; ++left) {
    std::vector<std::optional<Expr>> longer(static_cast<size_t>(of));
    for (int64_t r = 0; r < of; ++r) {
      std::vector<Expr> parts = next(r, 0);
      if (r == 0) parts.push_back(Expr::Text(""));
      if (!parts.empty()) {
        longer[static_cast<size_t>(r)] = NewRule("multiple", Expr::Choice(std::move(parts)));
      }
    }
    behind = std::move(longer);
  }
  Expr natural = Expr::Choice(next(0, 1));
  if (low < 0) natural = Expr::Sequence({Expr::Optional(Expr::Text("-")), std::move(natural)});
  return Expr::Choice({Expr::Text("0"), std::move(natural)});
}

absl::StatusOr<GbnfExpr> JsonGrammar::VisitNumber(const SchemaJson& schema, bool whole,
                                                  const Place& place) {
  struct Bound {
    const SchemaJson* at = nullptr;
    bool exclusive = false;
  } low, high;
  constexpr struct {
    const char* name;
    bool is_low, exclusive;
  } kBounds[] = {{"minimum", true, false},
                 {"exclusiveMinimum", true, true},
                 {"maximum", false, false},
                 {"exclusiveMaximum", false, true}};
  for (const auto& [name, is_low, exclusive] : kBounds) {
    const SchemaJson* field = Keyword(schema, name);
    if (field == nullptr) continue;
    Bound& bound = is_low ? low : high;
    if (exclusive && field->is_boolean()) {  // of draft 4
      bound.exclusive = bound.at != nullptr && *field == true;
      continue;
    }
    if (!field->is_number())
      return BadSchema(absl::StrCat(place.path, ".", name), "must be a number");
    const auto at = field->get<double>();
    const bool tighter = bound.at == nullptr ||
                         (is_low ? at >= bound.at->get<double>() : at <= bound.at->get<double>());
    if (tighter) bound = {.at = field, .exclusive = exclusive};
  }
  int digits = kFractionDigitsMax;
  int64_t multiple_of = 1;
  if (const SchemaJson* of = Keyword(schema, "multipleOf"); of != nullptr) {
    const double step = of->is_number() ? of->get<double>() : 0;
    if (!(step > 0)) return BadSchema(place.path + ".multipleOf", "must be a number above 0");
    const std::optional<int> of_ten = DigitsOfMultiples(step);
    if (step == std::floor(step) && step < static_cast<double>(kWholeMax)) {
      whole = true;
      multiple_of = static_cast<int64_t>(step);
    } else if (of_ten) {
      digits = *of_ten;
    } else {
      Relax(place.In("multipleOf"));
    }
  }
  const auto unmet = [&] {
    return UnmetSchema(place.path + (low.at != nullptr ? ".minimum" : ".maximum"),
                       "leaves no number");
  };
  if (whole) {
    if (low.at == nullptr && high.at == nullptr && multiple_of == 1) return Expr::Rule(integer_);
    int64_t from = low.at != nullptr ? WholeBound(*low.at, true, low.exclusive) : -kWholeMax;
    int64_t to = high.at != nullptr ? WholeBound(*high.at, false, high.exclusive) : kWholeMax;
    if (high.at == nullptr) to = from > kWholeMax ? std::numeric_limits<int64_t>::max() : to;
    if (low.at == nullptr) from = to < -kWholeMax ? -std::numeric_limits<int64_t>::max() : from;
    if (from > to) return unmet();
    const std::string key = absl::StrCat("integer ", from, " ", to, " ", multiple_of);
    if (multiple_of == 1) return Shared(key, WholeNumbers(from, to));
    if (const auto known = shared_.find(key); known != shared_.end())
      return Expr::Rule(known->second);
    std::optional<Expr> multiples = Multiples(from, to, multiple_of);
    if (!multiples) {
      Relax(place.In("multipleOf"));
      return Shared(absl::StrCat("integer ", from, " ", to, " 1"), WholeNumbers(from, to));
    }
    if (multiples->kind == Expr::Kind::kChoice && multiples->parts.empty()) return unmet();
    return Shared(key, *std::move(multiples));
  }
  if (low.at == nullptr && high.at == nullptr) {
    if (digits == kFractionDigitsMax) return Expr::Rule(number_);
    return Expr::Sequence({Expr::Rule(integer_), Expr::Optional(AnyFraction(digits))});
  }
  std::string key = absl::StrCat("number ", digits);
  std::optional<NumberBound> from, to;
  const std::string low_text = low.at != nullptr ? low.at->dump() : "";
  const std::string high_text = high.at != nullptr ? high.at->dump() : "";
  if (low.at != nullptr) from = {.number = low_text, .exclusive = low.exclusive};
  if (high.at != nullptr) to = {.number = high_text, .exclusive = high.exclusive};
  absl::StrAppend(&key, " ", low_text, low.exclusive ? " x " : " ", high_text,
                  high.exclusive ? " x" : "");
  std::optional<Expr> numbers = Numbers(from, to, digits);
  if (!numbers) return unmet();
  return Shared(key, *std::move(numbers));
}

}  // namespace strata
