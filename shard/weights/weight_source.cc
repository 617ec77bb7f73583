#include "shard/weights/weight_source.h"

#include "absl/strings/str_cat.h"

namespace strata {

absl::Status WeightSource::Named(const absl::Status& status) const {
  if (status.ok()) return status;
  absl::StatusCode code = status.code();
  // A source that no longer shares the model can share it again for a new plan.
  if (absl::IsNotFound(status)) code = absl::StatusCode::kFailedPrecondition;
  // gRPC's codes for a server that goes away; a cancelled fetch is reported elsewhere.
  if (absl::IsCancelled(status) || absl::IsUnknown(status)) code = absl::StatusCode::kUnavailable;
  return absl::Status(code,
                      absl::StrCat("fetching weights from ", address(), ": ", status.message()));
}

}  // namespace strata
