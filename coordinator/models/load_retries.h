// Whether a load that failed is planned again: where there was less memory or disk than was
// counted on, with what there is; once where the connection to a node broke. A state machine
// without I/O, thread or clock. Not thread-safe.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "coordinator/models/model_planner.h"

namespace strata {

class LoadRetries {
 public:
  // Layers that a person has `assigned` go nowhere else. `limits` are known before the first plan.
  LoadRetries(bool assigned, std::vector<CapacityLimit> limits)
      : is_assigned_(assigned), limits_(std::move(limits)) {}

  // A load has failed: by `limit`, if for want of memory or disk or for wrong numbers, or because a
  // connection broke (`is_unavailable`). True: it is planned again, with limits().
  bool OnFailed(const std::optional<CapacityLimit>& limit, bool is_unavailable) {
    const bool helps =
        (limit && !is_assigned_) || (is_unavailable && std::exchange(may_be_unavailable_, false));
    if (!helps || plans_ == kPlansMax || limits_.size() == kCapacityLimitsMax) return false;
    if (limit) limits_.push_back(*limit);
    if (!limit || !limit->of_disk()) ++plans_;
    return true;
  }

  const std::vector<CapacityLimit>& limits() const { return limits_; }

 private:
  static constexpr int kPlansMax = 4;  // besides those for want of disk

  const bool is_assigned_;
  bool may_be_unavailable_ = true;
  int plans_ = 1;
  std::vector<CapacityLimit> limits_;
};

}  // namespace strata
