// OpenSSL's errors as statuses.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

// kInternal: `what`, and OpenSSL's own words for what failed on this thread since it was last
// asked; they are forgotten. OpenSSL's words hold no keys.
absl::Status OpensslError(absl::string_view what);

}  // namespace strata
