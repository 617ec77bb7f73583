#include "coordinator/membership/flap_tracker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/base/steady_time.h"

namespace strata {

void NodeFlapTracker::Add(const std::string& node_id, SteadyTime now) {
  if (nodes_.size() >= kLossesMax && !nodes_.contains(node_id)) {
    nodes_.erase(std::min_element(nodes_.begin(), nodes_.end(), [](const auto& a, const auto& b) {
      return a.second.last < b.second.last;
    }));
  }
  Record& record = nodes_[node_id];
  if (now - record.last >= kLossesForgotten) record.times = 0;
  ++record.times;
  record.last = now;
}

SteadyTime NodeFlapTracker::Until(const Record& record) {
  if (record.times < 2) return SteadyTime::InfinitePast();
  // At most a thousandfold, which is beyond the longest.
  const int64_t factor = int64_t{1} << std::min(record.times - 2, 10u);
  return record.last + std::min(kExclusionMax, factor * kExclusionFirst);
}

std::string NodeFlapTracker::WhyExcluded(const std::string& node_id, SteadyTime now) const {
  const auto found = nodes_.find(node_id);
  if (found == nodes_.end() || now >= Until(found->second)) return "";
  return absl::StrCat(
      "it was lost ", found->second.times, " times lately, and is kept out for another ",
      absl::ToInt64Seconds(absl::Ceil(Until(found->second) - now, absl::Seconds(1))), " s");
}

std::map<std::string, std::string> NodeFlapTracker::ExcludedNodes(SteadyTime now) const {
  std::map<std::string, std::string> kept_out;
  for (const auto& [id, record] : nodes_) {
    if (std::string why = WhyExcluded(id, now); !why.empty()) kept_out[id] = std::move(why);
  }
  return kept_out;
}

SteadyTime NodeFlapTracker::NextReturn(SteadyTime now) const {
  SteadyTime next = SteadyTime::InfiniteFuture();
  for (const auto& [id, record] : nodes_) {
    if (now < Until(record)) next = std::min(next, Until(record));
  }
  return next;
}

}  // namespace strata
