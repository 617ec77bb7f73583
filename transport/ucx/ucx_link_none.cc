// Replaces ucx_link.cc where UCX is not installed: all links then go over gRPC.
#include "transport/ucx/ucx_link.h"

namespace strata {

void DisableUcxMemoryHooks() {}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the signature of ucx_link.cc.
absl::StatusOr<std::unique_ptr<UcxLinks>> UcxLinks::Start(Options /*options*/) {
  return absl::UnimplementedError("this Strata was built without UCX: links go over gRPC");
}

}  // namespace strata
