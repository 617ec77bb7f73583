#include "node/grammar/number_grammar.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

using Expr = GbnfExpr;

Expr Digits(char low = '0', char high = '9') {
  return Expr::Class({{static_cast<uint32_t>(low), static_cast<uint32_t>(high)}});
}
Expr Digits(uint32_t min, uint32_t max) {
  if (max == 0) return Expr::Text("");
  return Expr::Repeat(Digits(), {.min = min, .max = max});
}
bool IsZero(absl::string_view digits) {
  return digits.find_first_not_of('0') == absl::string_view::npos;
}

// The natural numbers from low to high, 0 <= low. Lengths of which each number is in range are one
// alternative.
void AddNaturals(uint64_t low, uint64_t high, std::vector<Expr>* parts) {
  if (low == 0) {
    parts->push_back(Expr::Text("0"));
    if (high == 0) return;
    low = 1;
  }
  const std::string first = absl::StrCat(low), last = absl::StrCat(high);
  const auto power = [](size_t digits) { return "1" + std::string(digits - 1, '0'); };
  if (first.size() == last.size() &&
      (first != power(first.size()) || last != std::string(last.size(), '9'))) {
    parts->push_back(DigitRange(first, last));
    return;
  }
  auto from = first.size(), to = last.size();  // digits of the whole lengths
  if (first != power(from)) parts->push_back(DigitRange(first, std::string(from++, '9')));
  const bool partial = last != std::string(to, '9');
  if (partial) --to;
  if (from <= to) {
    parts->push_back(Expr::Sequence({Digits('1', '9'), Digits(static_cast<uint32_t>(from - 1),
                                                              static_cast<uint32_t>(to - 1))}));
  }
  if (partial) parts->push_back(DigitRange(power(last.size()), last));
}

// A number without its sign.
struct Magnitude {
  uint64_t whole = 0;
  std::string fraction;  // digits, without zeros at the end
  bool exclusive = false;
};
constexpr uint64_t kTooLarge = std::numeric_limits<uint64_t>::max();

struct Decimal {
  bool negative = false;
  Magnitude magnitude;
  bool is_zero() const { return magnitude.whole == 0 && magnitude.fraction.empty(); }
};

// Its whole part is kTooLarge where it has more than 18 digits.
Decimal ReadDecimal(const NumberBound& bound) {
  Decimal decimal;
  decimal.magnitude.exclusive = bound.exclusive;
  absl::string_view text = bound.number;
  if (!text.empty() && text[0] == '-') {
    decimal.negative = true;
    text.remove_prefix(1);
  }
  int exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != absl::string_view::npos) {
    absl::string_view digits = text.substr(e + 1);
    if (!digits.empty() && digits[0] == '+') digits.remove_prefix(1);
    if (!absl::SimpleAtoi(digits, &exponent)) exponent = 0;
    text = text.substr(0, e);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string digits =
      absl::StrCat(text.substr(0, point), text.substr(std::min(point + 1, text.size())));
  // Where the point is in the digits.
  const int at = static_cast<int>(point) + std::clamp(exponent, -400, 400);
  if (at < 0) digits.insert(0, static_cast<size_t>(-at), '0');
  const auto whole = static_cast<size_t>(std::max(at, 0));
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  std::string before = digits.substr(0, whole);
  before.erase(0, std::min(before.find_first_not_of('0'), before.size()));
  if (before.size() > 18 ||
      (!before.empty() && !absl::SimpleAtoi(before, &decimal.magnitude.whole))) {
    decimal.magnitude.whole = kTooLarge;
  }
  std::string& fraction = decimal.magnitude.fraction = digits.substr(whole);
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
  return decimal;
}

// A fraction's digits, as bounds: null is none.
struct FractionBounds {
  std::optional<Magnitude> low, high;  // their fractions

  bool HasZero() const {
    return (!low || (IsZero(low->fraction) && !low->exclusive)) &&
           (!high || !IsZero(high->fraction) || !high->exclusive);
  }
};

// At least one and at most `left` digits; null: none fit.
std::optional<Expr> FractionDigits(FractionBounds bounds, int left) {
  if (bounds.low && IsZero(bounds.low->fraction) && !bounds.low->exclusive) bounds.low.reset();
  if (left == 0) return std::nullopt;
  const auto most = static_cast<uint32_t>(left);
  if (!bounds.low && !bounds.high) return Digits(1u, most);
  if (bounds.high && IsZero(bounds.high->fraction)) {
    if (bounds.high->exclusive || bounds.low) return std::nullopt;
    return Expr::Repeat(Expr::Text("0"), {.min = 1, .max = most});
  }
  // More than zero, with so many digits that few of them need be zeros.
  if (!bounds.high && IsZero(bounds.low->fraction) && left > 4) {
    const uint32_t zeros = (most - 1) / 2;
    return Expr::Sequence({Expr::Repeat(Expr::Text("0"), {.max = zeros}), Digits('1', '9'),
                           Digits(0u, most - 1 - zeros)});
  }
  const auto first = [](const Magnitude& bound) {
    return bound.fraction.empty() ? '0' : bound.fraction[0];
  };
  const auto rest = [](Magnitude bound) {
    if (!bound.fraction.empty()) bound.fraction.erase(0, 1);
    return bound;
  };
  const char low = bounds.low ? first(*bounds.low) : '0';
  const char high = bounds.high ? first(*bounds.high) : '9';
  if (low > high) return std::nullopt;
  std::vector<Expr> parts;
  const auto add = [&](char from, char to, const FractionBounds& behind) {
    if (from > to) return;
    const std::optional<Expr> more = FractionDigits(behind, left - 1);
    if (more && behind.HasZero()) {
      parts.push_back(Expr::Sequence({Digits(from, to), Expr::Optional(*more)}));
    } else if (more) {
      parts.push_back(Expr::Sequence({Digits(from, to), *more}));
    } else if (behind.HasZero()) {
      parts.push_back(Digits(from, to));
    }
  };
  FractionBounds at_low, at_high;
  if (bounds.low) at_low.low = rest(*bounds.low);
  if (bounds.high) at_high.high = rest(*bounds.high);
  if (bounds.low && bounds.high && low == high) {
    add(low, low, {at_low.low, at_high.high});
  } else {
    if (bounds.low) add(low, low, at_low);
    add(static_cast<char>(bounds.low ? low + 1 : low),
        static_cast<char>(bounds.high ? high - 1 : high), {});
    if (bounds.high) add(high, high, at_high);
  }
  if (parts.empty()) return std::nullopt;
  return Expr::Choice(std::move(parts));
}

// From low to high; null: none.
class MagnitudeGrammar {
 public:
  MagnitudeGrammar(std::optional<Magnitude> low, std::optional<Magnitude> high, int digits)
      : low_(Shortened(std::move(low), digits, /*is_low=*/true)),
        high_(Shortened(std::move(high), digits, /*is_low=*/false)),
        digits_(digits) {}

  std::optional<Expr> Make() {
    uint64_t from = low_ ? low_->whole : 0;
    const uint64_t to = high_ ? high_->whole : kTooLarge;
    const bool is_bounded = to != kTooLarge;
    if (from == kTooLarge || (!is_bounded && from > uint64_t{kWholeMax})) return std::nullopt;
    if (is_bounded && from == to) {
      Add(from, from, {.low = low_, .high = high_});
    } else if (from < to) {
      if (low_ && !IsWholeStart()) {
        Add(from, from, {.low = low_});
        ++from;
      }
      if (!is_bounded) {
        Add(from, kWholeMax, {});
      } else {
        if (from < to) Add(from, to - 1, {});
        Add(to, to, {.high = high_});
      }
    }
    if (parts_.empty()) return std::nullopt;
    return Expr::Choice(std::move(parts_));
  }

 private:
  // With no more digits than are written: the nearest number within the bound.
  static std::optional<Magnitude> Shortened(std::optional<Magnitude> bound, int digits,
                                            bool is_low) {
    const auto most = static_cast<size_t>(digits);
    if (!bound || bound->fraction.size() <= most) return bound;
    bound->fraction.resize(most);
    bound->exclusive = is_low;
    return bound;
  }
  bool IsWholeStart() const { return low_->fraction.empty() && !low_->exclusive; }
  void Add(uint64_t from, uint64_t to, const FractionBounds& bounds) {
    if (from > to) return;
    const std::optional<Expr> digits = FractionDigits(bounds, digits_);
    if (!digits && !bounds.HasZero()) return;
    std::vector<Expr> whole;
    AddNaturals(from, to, &whole);
    Expr number = Expr::Choice(std::move(whole));
    if (digits) {
      Expr fraction = Expr::Sequence({Expr::Text("."), *digits});
      number =
          Expr::Sequence({std::move(number), bounds.HasZero() ? Expr::Optional(std::move(fraction))
                                                              : std::move(fraction)});
    }
    parts_.push_back(std::move(number));
  }

  const std::optional<Magnitude> low_;
  const std::optional<Magnitude> high_;
  const int digits_;
  std::vector<Expr> parts_;
};

}  // namespace

Expr DigitRange(absl::string_view low, absl::string_view high) {
  if (low.empty()) return Expr::Text("");
  const auto rest = static_cast<uint32_t>(low.size() - 1);
  const std::string zeros(rest, '0'), nines(rest, '9');
  if (low.substr(1) == zeros && high.substr(1) == nines) {
    if (rest == 0) return Digits(low[0], high[0]);
    return Expr::Sequence({Digits(low[0], high[0]), Digits(rest, rest)});
  }
  if (low[0] == high[0]) {
    return Expr::Sequence({Digits(low[0], high[0]), DigitRange(low.substr(1), high.substr(1))});
  }
  std::vector<Expr> parts;
  char from = low[0], to = high[0];
  if (low.substr(1) != zeros) {
    parts.push_back(Expr::Sequence({Digits(from, from), DigitRange(low.substr(1), nines)}));
    ++from;
  }
  const bool partial = high.substr(1) != nines;
  if (partial) --to;
  if (from <= to) parts.push_back(Expr::Sequence({Digits(from, to), Digits(rest, rest)}));
  if (partial) {
    parts.push_back(Expr::Sequence({Digits(high[0], high[0]), DigitRange(zeros, high.substr(1))}));
  }
  return Expr::Choice(std::move(parts));
}

Expr WholeNumbers(int64_t low, int64_t high) {
  const auto magnitude = [](int64_t value) {
    return value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  };
  std::vector<Expr> parts;
  if (low < 0) {
    std::vector<Expr> negative;
    AddNaturals(high < 0 ? magnitude(high) : 1, magnitude(low), &negative);
    parts.push_back(Expr::Sequence({Expr::Text("-"), Expr::Choice(std::move(negative))}));
  }
  if (high >= 0) AddNaturals(low > 0 ? magnitude(low) : 0, magnitude(high), &parts);
  return Expr::Choice(std::move(parts));
}

std::optional<Expr> Numbers(const std::optional<NumberBound>& low,
                            const std::optional<NumberBound>& high, int fraction_digits) {
  std::optional<Decimal> from, to;
  if (low) from = ReadDecimal(*low);
  if (high) to = ReadDecimal(*high);
  std::vector<Expr> parts;
  // Below zero: magnitudes from that of the high bound to that of the low one.
  if (!from || (from->negative && !from->is_zero())) {
    Magnitude least = {.exclusive = true};  // zero is no negative number
    if (to && (to->negative && !to->is_zero())) least = to->magnitude;
    std::optional<Magnitude> most;
    if (from) most = from->magnitude;
    if (auto part = MagnitudeGrammar(least, most, fraction_digits).Make()) {
      parts.push_back(Expr::Sequence({Expr::Text("-"), *std::move(part)}));
    }
  }
  if (!to || !to->negative || to->is_zero()) {
    std::optional<Magnitude> least, most;
    if (from && (!from->negative || from->is_zero())) least = from->magnitude;
    if (to) most = to->magnitude;
    if (auto part = MagnitudeGrammar(least, most, fraction_digits).Make()) {
      parts.push_back(*std::move(part));
    }
  }
  if (parts.empty()) return std::nullopt;
  return Expr::Choice(std::move(parts));
}

Expr AnyFraction(int digits) {
  return Expr::Sequence({Expr::Text("."), Digits(1u, static_cast<uint32_t>(digits))});
}

}  // namespace strata
