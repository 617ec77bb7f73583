// Which plan a message belongs to. Epochs are compared as a pair, counter first; whoever carries an
// older one is refused.
#pragma once

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

}  // namespace strata
