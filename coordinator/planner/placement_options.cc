#include "coordinator/planner/placement_options.h"

#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace strata {
namespace {

absl::Status Wrong(absl::string_view option, absl::string_view part, absl::string_view right) {
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": \"", part, "\" is not understood; it is written ", right));
}

std::vector<absl::string_view> Parts(absl::string_view text) {
  std::vector<absl::string_view> parts;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    parts.push_back(absl::StripAsciiWhitespace(part));
  }
  return parts;
}

}  // namespace

absl::StatusOr<std::vector<Assignment>> ParseAssign(absl::string_view text) {
  constexpr absl::string_view kRight = "nodeA=0-19,nodeB=20-31 (layers from 0, the last included)";
  std::vector<Assignment> assignments;
  for (const absl::string_view part : Parts(text)) {
    const std::pair<absl::string_view, absl::string_view> sides =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(sides.second, absl::MaxSplits('-', 1));
    uint32_t first = 0, last = 0;
    const bool is_range = absl::StrContains(sides.second, '-');
    if (sides.first.empty() || !absl::SimpleAtoi(ends.first, &first) ||
        !absl::SimpleAtoi(is_range ? ends.second : ends.first, &last) || last == UINT32_MAX) {
      return Wrong("--assign", part, kRight);
    }
    if (last < first) {
      return absl::InvalidArgumentError(
          absl::StrCat("--assign: \"", part, "\" ends before it begins"));
    }
    assignments.push_back(
        {std::string(absl::StripAsciiWhitespace(sides.first)), {first, last + 1}});
  }
  return assignments;
}

absl::StatusOr<std::vector<std::string>> ParseExclude(absl::string_view text) {
  std::vector<std::string> places;
  for (const absl::string_view part : Parts(text)) {
    if (part.empty()) return Wrong("--exclude", text, "nodeA,nodeB/CUDA0");
    places.emplace_back(part);
  }
  return places;
}

absl::StatusOr<std::vector<Reserve>> ParseReserve(absl::string_view text) {
  std::vector<Reserve> reserves;
  for (const absl::string_view part : Parts(text)) {
    const size_t equals = part.rfind('=');
    const absl::string_view node = equals == part.npos ? "" : part.substr(0, equals);
    const absl::StatusOr<uint64_t> bytes =
        ParseBytes(equals == part.npos ? part : part.substr(equals + 1));
    if (!bytes.ok() || equals == 0)
      return Wrong("--reserve", part, "2GiB or nodeA=2GiB,nodeB=512M");
    reserves.push_back({std::string(node), *bytes});
  }
  return reserves;
}

absl::StatusOr<Objective> ParseObjective(absl::string_view text) {
  for (const Objective objective : {Objective::kLatency, Objective::kThroughput}) {
    if (text == ObjectiveName(objective)) return objective;
  }
  return Wrong("--objective", text, "latency or throughput");
}

absl::StatusOr<CpuMoe> ParseCpuMoe(absl::string_view text) {
  if (text == "auto") return CpuMoe::kAuto;
  if (text == "all") return CpuMoe::kAll;
  if (text == "none") return CpuMoe::kNone;
  return Wrong("--cpu-moe", text, "auto, all or none");
}

std::string ObjectiveName(Objective objective) {
  return objective == Objective::kLatency ? "latency" : "throughput";
}

absl::StatusOr<uint64_t> ParseBytes(absl::string_view text) {
  std::string lower = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text));
  absl::string_view number = lower;
  if (!absl::ConsumeSuffix(&number, "ib")) absl::ConsumeSuffix(&number, "b");
  constexpr absl::string_view kUnits = "kmgt";
  double factor = 1;
  if (!number.empty() && kUnits.find(number.back()) != kUnits.npos) {
    factor = std::pow(1024.0, static_cast<double>(kUnits.find(number.back()) + 1));
    number.remove_suffix(1);
  }
  double value = 0;
  const bool plain = number.find_first_not_of("0123456789. ") == number.npos;
  if (!plain || !absl::SimpleAtod(number, &value) || value * factor >= 9e18) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a number of bytes; 512M or 1.5GiB is"));
  }
  return static_cast<uint64_t>(std::llround(value * factor));
}

}  // namespace strata
