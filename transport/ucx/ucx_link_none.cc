// In place of ucx_link.cc where UCX is not installed: everything else works over gRPC.
#include "transport/ucx/ucx_link.h"

namespace strata {

void KeepUcxFromHooking() {}

// NOLINTNEXTLINE(performance-unnecessary-value-param): as ucx_link.cc has it.
absl::StatusOr<std::unique_ptr<UcxLinks>> UcxLinks::Start(Options /*options*/) {
  return absl::UnimplementedError("this Strata was built without UCX: links go over gRPC");
}

}  // namespace strata
