#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "node/grammar/json_schema_grammar.h"

namespace strata {
namespace {

using Expr = GbnfExpr;

Expr Digits(uint32_t low = '0', uint32_t high = '9') {
  return Expr::Class({{.first = low, .last = high}});
}
Expr Exactly(Expr part, uint32_t times) {
  if (times == 0) return Expr::Text("");
  return Expr::Repeat(std::move(part), {.min = times, .max = times});
}

// Strings of digits from `low` to `high`, which are as long as each other.
Expr DigitRange(const std::string& low, const std::string& high) {
  if (low.empty()) return Expr::Text("");
  const auto rest = static_cast<uint32_t>(low.size() - 1);
  const auto first = static_cast<uint32_t>(low[0]), last = static_cast<uint32_t>(high[0]);
  if (low == std::string(low.size(), '0') && high == std::string(high.size(), '9')) {
    return Exactly(Digits(), rest + 1);
  }
  if (first == last) {
    return Expr::Sequence({Digits(first, last), DigitRange(low.substr(1), high.substr(1))});
  }
  std::vector<Expr> parts;
  uint32_t from = first, to = last;
  if (low.substr(1) != std::string(rest, '0')) {
    parts.push_back(
        Expr::Sequence({Digits(first, first), DigitRange(low.substr(1), std::string(rest, '9'))}));
    ++from;
  }
  const bool partial = high.substr(1) != std::string(rest, '9');
  if (partial) --to;
  if (from <= to) parts.push_back(Expr::Sequence({Digits(from, to), Exactly(Digits(), rest)}));
  if (partial) {
    parts.push_back(
        Expr::Sequence({Digits(last, last), DigitRange(std::string(rest, '0'), high.substr(1))}));
  }
  return Expr::Choice(std::move(parts));
}

// Without sign, low >= 0.
void AddNaturals(int64_t low, int64_t high, std::vector<Expr>* parts) {
  if (low == 0) {
    parts->push_back(Expr::Text("0"));
    ++low;
  }
  while (low <= high) {
    const std::string digits = absl::StrCat(low);
    const int64_t last =
        std::min(high, static_cast<int64_t>(std::stoll(std::string(digits.size(), '9'))));
    parts->push_back(DigitRange(digits, absl::StrCat(last)));
    low = last + 1;
  }
}

std::map<std::string, Expr> MakeFormats() {
  const Expr hex = Expr::Class({{'0', '9'}, {'a', 'f'}, {'A', 'F'}});
  const auto two = [](const char* low, const char* high) { return DigitRange(low, high); };
  const auto text = [](const char* words) { return Expr::Text(words); };
  // The 29th of February is not in every year.
  const Expr day =
      Expr::Choice({Expr::Sequence({text("02-"), two("01", "28")}),
                    Expr::Sequence({Expr::Choice({text("04"), text("06"), text("09"), text("11")}),
                                    text("-"), two("01", "30")}),
                    Expr::Sequence({Expr::Choice({text("01"), text("03"), text("05"), text("07"),
                                                  text("08"), text("10"), text("12")}),
                                    text("-"), two("01", "31")})});
  const Expr date = Expr::Sequence({Exactly(Digits(), 4), text("-"), day});
  const Expr zone =
      Expr::Choice({text("Z"), Expr::Sequence({Expr::Class({{'+', '+'}, {'-', '-'}}),
                                               two("00", "23"), text(":"), two("00", "59")})});
  const Expr part =
      Expr::Optional(Expr::Sequence({text("."), Expr::Repeat(Digits(), {.min = 1, .max = 9})}));
  const Expr time = Expr::Sequence(
      {two("00", "23"), text(":"), two("00", "59"), text(":"), two("00", "59"), part, zone});
  const Expr octet =
      Expr::Choice({text("0"), DigitRange("1", "9"), two("10", "99"), DigitRange("100", "255")});
  const Expr uuid =
      Expr::Sequence({Exactly(hex, 8), text("-"), Exactly(hex, 4), text("-"), Exactly(hex, 4),
                      text("-"), Exactly(hex, 4), text("-"), Exactly(hex, 12)});
  return {{"date", date},
          {"time", time},
          {"date-time", Expr::Sequence({date, text("T"), time})},
          {"uuid", uuid},
          {"ipv4", Expr::Sequence({octet, Exactly(Expr::Sequence({text("."), octet}), 3)})}};
}

}  // namespace

Expr RepeatAnyNumber(Expr part, Expr::Times times) {
  constexpr uint32_t kMost = kGrammarRepeatMax;
  if (times.min <= kMost && (times.max == Expr::kNoMax || times.max <= kMost)) {
    return Expr::Repeat(std::move(part), times);
  }
  std::vector<Expr> parts;
  uint32_t left = times.min;
  for (; left > kMost; left -= kMost) parts.push_back(Exactly(part, kMost));
  if (left > 0) parts.push_back(Exactly(part, left));
  if (times.max == Expr::kNoMax) {
    parts.push_back(Expr::Repeat(part, {.min = 0}));
    return Expr::Sequence(std::move(parts));
  }
  Expr rest = Expr::Repeat(part, {.min = 0, .max = (times.max - times.min) % kMost});
  for (uint32_t n = (times.max - times.min) / kMost; n > 0; --n) {
    rest = Expr::Choice({Expr::Repeat(part, {.min = 0, .max = kMost - 1}),
                         Expr::Sequence({Exactly(part, kMost), std::move(rest)})});
  }
  parts.push_back(std::move(rest));
  return Expr::Sequence(std::move(parts));
}

Expr WholeNumbers(int64_t low, int64_t high) {
  std::vector<Expr> parts;
  if (low < 0) {
    std::vector<Expr> negative;
    AddNaturals(std::max<int64_t>(1, -high), -low, &negative);
    parts.push_back(Expr::Sequence({Expr::Text("-"), Expr::Choice(std::move(negative))}));
  }
  if (high >= 0) AddNaturals(std::max<int64_t>(0, low), high, &parts);
  return Expr::Choice(std::move(parts));
}

const Expr* FormatGrammar(const std::string& format) {
  static const auto* const formats = new std::map<std::string, Expr>(MakeFormats());
  const auto found = formats->find(format);
  return found == formats->end() ? nullptr : &found->second;
}

}  // namespace strata
