#include "transport/base/epoch.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace strata {

int CompareEpochs(const wire::Epoch& a, const wire::Epoch& b) {
  if (a.counter() != b.counter()) return a.counter() < b.counter() ? -1 : 1;
  const int order = a.coordinator_id().compare(b.coordinator_id());
  return order < 0 ? -1 : order > 0 ? 1 : 0;
}

std::string EpochString(const wire::Epoch& epoch) {
  if (epoch.counter() == 0 && epoch.coordinator_id().empty()) return "none";
  // A peer may have sent an id of any length; a node's own has 32 characters.
  return absl::StrCat(epoch.counter(), " of ",
                      absl::string_view(epoch.coordinator_id()).substr(0, 32));
}

absl::Status CheckEpoch(const wire::Epoch& theirs, const wire::Epoch& newest) {
  if (CompareEpochs(theirs, newest) >= 0) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("epoch ", EpochString(theirs),
                                         " is older than the newest seen, ", EpochString(newest)));
}

StageKey StageKeyOf(const wire::Epoch& epoch, uint32_t stage) {
  return {.counter = epoch.counter(), .coordinator_id = epoch.coordinator_id(), .stage = stage};
}

}  // namespace strata
