// The exit status of the program, by the error that ended it; `strata --help` lists it.
#pragma once

#include "absl/status/status.h"

namespace strata {

enum ExitCode {
  kExitOk = 0,
  kExitFailure = 1,  // none of the below
  kExitUsage = 2,    // a wrong command line
  kExitModel = 3,    // the model is missing, damaged, unknown, or cannot be cut so
  kExitMemory = 4,   // not enough memory or disk
  kExitNode = 5,     // a node, worker or network failed
  kExitUnwell = 6,   // `strata doctor` found something wrong
  kExitInterrupted = 130,
};

// A kInvalidArgument whose message begins with an option's name ("--nodes …") is a wrong command
// line.
ExitCode ExitCodeFor(const absl::Status& status);

}  // namespace strata
