// `strata status --watch`: shows the cluster's state once a second until a person or a signal ends
// it.
#pragma once

#include "absl/status/status.h"
#include "node/status/status.h"

namespace strata {

// Draws on the terminal, and restores it at the end. Blocks until the user quits; may end the
// process itself if a call to a node hangs. kUnavailable: no node answered at first;
// kInvalidArgument: stdout is no terminal.
absl::Status RunStatusWatch(const StatusOptions& options);

// Prints a line of JSON for each report, {"error":…} if there is none. Blocks until stdout is
// closed. kUnavailable: no node answered at first.
absl::Status RunStatusLines(const StatusOptions& options);

}  // namespace strata
