// Grammars of numbers within bounds, as JSON writes them without an exponent. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "shard/sampling/gbnf.h"

namespace strata {

inline constexpr int kWholeDigits = 15;  // exact everywhere
inline constexpr int64_t kWholeMax = 999'999'999'999'999;
inline constexpr int kFractionDigitsMax = 15;
inline constexpr int64_t kMultiplesListedMax = 512;
inline constexpr int64_t kMultipleOfMax = 12;  // has a rule for each remainder and length

// The whole numbers from low to high.
GbnfExpr WholeNumbers(int64_t low, int64_t high);

struct NumberBound {
  absl::string_view number;  // as JSON writes it
  bool exclusive = false;
};
// Numbers of at most so many digits behind the point. Null: none is within the bounds. Of a side
// without a bound, at most 15 digits before the point.
std::optional<GbnfExpr> Numbers(const std::optional<NumberBound>& low,
                                const std::optional<NumberBound>& high, int fraction_digits);

// Digits behind the point, at least one.
GbnfExpr AnyFraction(int digits);

// Digits from `low` to `high`, which are as long as each other.
GbnfExpr DigitRange(absl::string_view low, absl::string_view high);

}  // namespace strata
