// The epoch says which plan a message belongs to. Epochs are compared as a pair, counter first; a
// message with an older epoch is refused.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/frame.pb.h"

namespace strata {

// Negative: `a` is older; 0: the same; positive: `a` is newer.
int CompareEpochs(const wire::Epoch& a, const wire::Epoch& b);

// For people: "3 of 9f2c41d0", or "none".
std::string EpochString(const wire::Epoch& epoch);

// OK unless `theirs` is older than `newest`; then kAborted, naming both.
absl::Status CheckEpoch(const wire::Epoch& theirs, const wire::Epoch& newest);

// One stage of one plan: nodes and workers keep their stages by it, so that plans of several
// models, and the next plan beside the one before, can be on a node at the same time.
struct StageKey {
  uint64_t counter = 0;  // of the plan's epoch
  std::string coordinator_id;
  uint32_t stage = 0;  // index in the plan
  auto operator<=>(const StageKey&) const = default;
};
StageKey StageKeyOf(const wire::Epoch& epoch, uint32_t stage);

}  // namespace strata
