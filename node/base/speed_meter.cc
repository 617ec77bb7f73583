#include "node/base/speed_meter.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace strata {
namespace {

constexpr absl::Duration kWindow = absl::Seconds(5);

std::string TimeText(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(std::min(seconds, 359'999.0)));
  if (whole >= 3600) {
    return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
}

}  // namespace

void SpeedMeter::Update(SteadyTime now, uint64_t done) {
  if (!seen_.empty() && done < seen_.back().second) seen_.clear();
  seen_.emplace_back(now, done);
  while (seen_.size() > 2 && now - seen_.front().first > kWindow) seen_.pop_front();
}

double SpeedMeter::bytes_per_s() const {
  if (seen_.empty()) return 0;
  const double seconds = absl::ToDoubleSeconds(seen_.back().first - seen_.front().first);
  return seconds > 0 ? static_cast<double>(seen_.back().second - seen_.front().second) / seconds
                     : 0;
}

std::string SpeedText(double bytes_per_s, uint64_t bytes_left) {
  if (bytes_per_s <= 0) return "";
  return absl::StrFormat("%.1f MB/s  %s left", bytes_per_s / 1e6,
                         TimeText(static_cast<double>(bytes_left) / bytes_per_s));
}

}  // namespace strata
