// OpenSSL's errors as statuses.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

// kInternal: `what`, and OpenSSL's messages for this thread's errors since the last call; clears
// these errors. OpenSSL's messages hold no keys.
absl::Status OpensslError(absl::string_view what);

}  // namespace strata
