#include "tests/net/chaos_totals.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace strata {
namespace {

// "0.4 s (p50), 1.2 s (p99)".
std::string Percentiles(std::vector<double> values) {
  std::ranges::sort(values);
  return absl::StrFormat("%.1f s (p50), %.1f s (p99)", values[values.size() / 2],
                         values[values.size() * 99 / 100]);
}

}  // namespace

void ChaosTotals::Add(const std::string& fault, const ChaosSeen& seen) {
  for (Pauses* const pauses : {&pauses_, &pauses_of_[fault]}) {
    pauses->all.push_back(seen.pause);
    pauses->loading.push_back(seen.loading);
  }
  ended_.push_back(seen.ended);
  hit_coordinator_ += seen.hit_coordinator;
  hit_gateway_ += seen.hit_gateway;
  texts_ += seen.texts;
  excused_ += seen.excused;
  tokens_ += seen.tokens;
  ties_ += seen.ties;
  longest_sequence_ = std::max(longest_sequence_, seen.longest_sequence);
}

std::string ChaosTotals::Text() const {
  std::string text;
  for (const auto& [fault, pauses] : pauses_of_) {
    absl::StrAppendFormat(&text, "%s: %u rounds; paused for %s, of which loading %s\n", fault,
                          pauses.all.size(), Percentiles(pauses.all), Percentiles(pauses.loading));
  }
  const size_t rounds = ended_.size();
  const auto share = [&](size_t hit) {
    return 100.0 * static_cast<double>(hit) / static_cast<double>(rounds);
  };
  absl::StrAppendFormat(
      &text,
      "%u rounds: texts paused for %s, the longest in each round, of which loading %s; the last "
      "text ended %s after the fault was mended; %.0f %% of the rounds hit the coordinator, %.0f "
      "%% a node that takes texts; %u of %u texts excused; %u of %u tokens, in texts of up to %u, "
      "are as likely as the likeliest within rounding, the others are it\n",
      rounds, Percentiles(pauses_.all), Percentiles(pauses_.loading), Percentiles(ended_),
      share(hit_coordinator_), share(hit_gateway_), excused_, texts_, ties_, tokens_,
      longest_sequence_);
  return text;
}

}  // namespace strata
