#include "coordinator/planner/unit_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace strata {

std::string BytesText(uint64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  if (mib >= 1000) return absl::StrFormat("%.1f GiB", mib / 1024);
  return absl::StrFormat("%.*f MiB", mib >= 10 ? 0 : 1, mib);
}

std::string TimeText(double seconds) {
  const double ms = seconds * 1e3;
  return absl::StrFormat("%.*f ms", ms >= 100 ? 0 : ms >= 1 ? 1 : 2, ms);
}

std::string LayersText(LayerRange layers) {
  if (layers.size() == 1) return absl::StrCat("layer ", layers.begin);
  return absl::StrCat("layers ", layers.begin, "-", layers.end - 1);
}

}  // namespace strata
