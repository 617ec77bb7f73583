// `strata status --watch`: the cluster's state, asked about once a second until a person or a
// signal ends it.
#pragma once

#include "absl/status/status.h"
#include "node/status/status.h"

namespace strata {

// On the terminal, which is as before when it returns. Blocks until somebody quits; may end the
// process itself where a node keeps it waiting. kUnavailable: nobody was there to begin with;
// kInvalidArgument: stdout is no terminal.
absl::Status RunStatusWatch(const StatusOptions& options);

// A line of JSON for each report, {"error":…} where there is none. Blocks until whoever reads
// stdout goes away. kUnavailable: nobody was there to begin with.
absl::Status RunStatusLines(const StatusOptions& options);

}  // namespace strata
