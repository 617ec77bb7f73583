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

void ChaosTotals::Add(const std::string& fault, const RoundStats& stats) {
  std::vector<Pauses*> of = {&pauses_, &pauses_of_[fault]};
  if (stats.hit_coordinator) of.push_back(&pauses_of_["the coordinator, by any of these"]);
  for (Pauses* const pauses : of) {
    pauses->all.push_back(stats.pause);
    pauses->loading.push_back(stats.loading);
  }
  ended_.push_back(stats.ended);
  hit_coordinator_ += stats.hit_coordinator;
  hit_gateway_ += stats.hit_gateway;
  requests_ += stats.requests;
  excused_ += stats.excused;
  tokens_ += stats.tokens;
  ties_ += stats.ties;
  longest_sequence_ = std::max(longest_sequence_, stats.longest_sequence);
}

std::string ChaosTotals::Text() const {
  std::string text;
  for (const auto& [fault, pauses] : pauses_of_) {
    absl::StrAppendFormat(&text, "%s: %u rounds; paused for %s, of which loading %s\n", fault,
                          pauses.all.size(), Percentiles(pauses.all), Percentiles(pauses.loading));
  }
  const size_t rounds = ended_.size();
  const auto percent = [&](size_t hit) {
    return 100.0 * static_cast<double>(hit) / static_cast<double>(rounds);
  };
  absl::StrAppendFormat(
      &text,
      "%u rounds: requests paused for %s, the longest in each round, of which loading %s; the last "
      "request ended %s after the fault was repaired; %.0f %% of the rounds hit the coordinator, "
      "%.0f %% a gateway; %u of %u requests excused; %u of %u tokens, in sequences of up to %u, "
      "are as likely as the likeliest within rounding, the others are it\n",
      rounds, Percentiles(pauses_.all), Percentiles(pauses_.loading), Percentiles(ended_),
      percent(hit_coordinator_), percent(hit_gateway_), excused_, requests_, ties_, tokens_,
      longest_sequence_);
  return text;
}

}  // namespace strata
